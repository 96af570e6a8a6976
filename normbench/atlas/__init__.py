"""What norms the models of other libraries really have: each family is built tiny, and its norms are measured."""
