"""Sums of products of two tensors (einsum) as a product of matrices."""

from .shapes import step
from .table import fake, function, number, same


@function("einsum")
def einsum(t, node, equation, tensors, path=None):
    """The letters of both tensors are dimensions of many matrices if the result has them, else they
    are summed. Of the letters of one tensor, the last of the first tensor and all of the second are
    rows and columns; the other ones of the first tensor are in front, and so is the batch."""
    parts, sizes = read(t, node, equation, tensors)
    x, y = tensors
    if any(t.has_batch(sizes[letter]) for letter in parts[1] if letter not in parts[0]):
        (x, y), parts = (y, x), [parts[1], parts[0], parts[2]]
    first, second, result = parts
    both = [letter for letter in first if letter in second and letter in result]
    summed = [letter for letter in first if letter in second and letter not in result]
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    # The batch comes first.
    rows.sort(key=lambda letter: not t.has_batch(sizes[letter]))
    # A size that is known is the row; the batch alone is none.
    split = len(rows) - 1 if rows and not t.has_batch(sizes[rows[-1]]) else len(rows)
    front, row = rows[:split], rows[split:]
    x = grouped(t, node, x, first, [*[[one] for one in [*front, *both]], row, summed], sizes)
    y = grouped(t, node, y, second, [*[[one] for one in both], summed, columns], sizes)
    order = [*front, *both, *row, *columns]
    wide = [sizes[one] for one in [*front, *both]]
    last = [product(sizes, row), product(sizes, columns)]
    made = step(t, node, "MatMul", {}, x, [*wide, *last], y)
    made = ungrouped(t, node, made, wide, [row, columns], sizes)
    turned = [order.index(letter) for letter in result]
    if turned == sorted(turned):
        return made
    return step(t, node, "Permute", {"dims": turned}, made, [sizes[one] for one in result])


def read(t, node, equation, tensors):
    """The letters of both tensors and of the result, and the size of each letter."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    parts = [*inputs.split(","), result]
    sizes = {}
    fits = arrow and len(parts) == 3 and "." not in equation
    fits = fits and all(len(set(part)) == len(part) for part in parts)
    for part, tensor in zip(parts, tensors):
        for letter, size in zip(part, fake(tensor).shape):
            fits = fits and same(sizes.setdefault(letter, size), size)
    letters = [set(part) for part in parts]
    # A letter of one tensor that the result does not have is a sum before the product.
    fits = fits and not (letters[0] ^ letters[1]) - letters[2]
    growing = {letter for letter, size in sizes.items() if t.has_batch(size)}
    fits = fits and len(growing) <= 1 and growing <= letters[-1] and set(sizes) >= letters[-1]
    if not fits or any(number(sizes[one]) is None for one in set(sizes) - growing):
        raise t.no_layer(node, "BossMan multiplies two tensors of known sizes (MatMul)")
    return parts, sizes


def product(sizes, letters):
    found = 1
    for letter in letters:
        found = found * sizes[letter]
    return found


def grouped(t, node, x, letters, groups, sizes):
    """A tensor with one dimension for each group of letters."""
    order = [letter for group in groups for letter in group]
    dims = [letters.index(letter) for letter in order]
    shape = [sizes[letter] for letter in order]
    if dims != sorted(dims):
        x = step(t, node, "Permute", {"dims": dims}, x, shape)
    for place, group in enumerate(groups):
        if not group:
            shape = [*shape[:place], 1, *shape[place:]]
            x = step(t, node, "Unsqueeze", {"dim": place}, x, shape)
        elif len(group) > 1:
            end = place + len(group)
            shape = [*shape[:place], product(sizes, group), *shape[end:]]
            x = step(t, node, "Flatten", {"start_dim": place, "end_dim": end - 1}, x, shape)
    return x


def ungrouped(t, node, x, wide, groups, sizes):
    """The same backwards, for the last two dimensions."""
    shape = [*wide, *(product(sizes, group) for group in groups)]
    for place, group in reversed([*enumerate(groups, len(wide))]):
        own = [sizes[letter] for letter in group]
        shape = [*shape[:place], *own, *shape[place + 1 :]]
        if not group:
            x = step(t, node, "Squeeze", {"dim": place}, x, shape)
        elif len(group) > 1:
            x = step(t, node, "Unflatten", {"dim": place, "unflattened_size": own}, x, shape)
    return x
