"""Command-line flags of the model server."""

from model_server.flags.command_line import make_config as make_config
from model_server.flags.command_line import make_parser as make_parser
