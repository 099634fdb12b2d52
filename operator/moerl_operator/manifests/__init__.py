"""Pure builders of the child objects of a job: the same words in give the same object out."""
