"""From run directories to statistics, figures and a report; nothing here knows a model."""
