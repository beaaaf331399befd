"""Background load: an open-loop driver whose windows are probe samples."""
