"""What runs inside a lab node before and beside the code under test."""
