"""The authors' and Hugging Face's checkpoints in, safetensors out, and parity with the authors' arithmetic."""
