"""The frameworks' own suites with remora in place of the frameworks' own classes.

    python -m benchmarks.lab.frameworks run FRAMEWORK CHECKOUT [--venvs DIR] [--results FILE]
    python -m benchmarks.lab.frameworks own [FRAMEWORK …] [--venvs DIR] [--results FILE]
    python -m benchmarks.lab.frameworks table [--results FILE] [--page FILE]

A checkout is the framework's repository, or its sdist unpacked; the script fetches none. The first
run makes an environment with the pinned release, by pip. Each suite runs twice: with the
framework's own classes and with remora.

``own`` runs remora's tests of adapters whose frameworks are not installed for developers. Each has
an environment of its own, made in seconds, as it shares what it can with the developers'. Without a
name it runs all, as CI does. A framework that cannot be installed is named and skipped. Their
outcomes are the cells of the page's second table (`benchmarks.lab.frameworks.conformance`), which
``table`` writes as well.
"""
