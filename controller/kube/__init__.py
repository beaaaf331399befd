"""The Kubernetes side: the API, pods and their nodes, how their agents are reached."""
