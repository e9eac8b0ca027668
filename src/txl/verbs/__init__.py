"""The command line beside training: one file a verb, each with `add_to(verbs)`."""
