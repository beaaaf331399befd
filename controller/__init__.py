"""The controller: decides what, where, when and for how long; never touches the kernel."""
