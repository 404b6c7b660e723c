"""The version of this project; it is also that of the installed package."""

VERSION = "0.1.0"
