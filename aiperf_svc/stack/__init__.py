"""The Pulumi components of a stack: each translates a part of a plan into Kubernetes objects."""
