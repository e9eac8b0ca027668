"""The authors' and Hugging Face's checkpoints in, safetensors out; parity with the authors' arithmetic."""
