"""The parts behind `Chain`: architecture, recording, kept programs, and checks of arguments."""
