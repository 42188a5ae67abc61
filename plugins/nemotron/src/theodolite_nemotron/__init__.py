"""NVIDIA Nemotron embedders."""
