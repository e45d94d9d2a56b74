//! Whole streams against a model of the file.
