"""The process of the storms ``rows`` and ``rows-sqlite``: it needs Django before its modules are imported."""

import django

if __name__ == "__main__":
    django.setup()
    from chaos import row_trials

    row_trials.main()
