"""The loss on fixed data as a function of the parameters: values, gradients, residuals, and their minimisers."""
