"""What may be asked for: typed settings, how they are composed, errors that name the nearest option."""
