"""SigLIP: texts and images in one space."""
