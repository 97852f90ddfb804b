"""Which example, which domain: folders, splits, the decoded cache, transforms, batches."""
