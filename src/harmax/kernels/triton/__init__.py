"""The loss on a GPU: three large products by cuBLAS, and fused element-wise passes in Triton between them.

Read `engine.py` first: it goes through the blocks of the (B, V) matrix of products and calls the steps in order.

    support.py     whether this implementation can run, and the errors if not
    modes.py       how large a block is: time against memory
    tiles.py       sizes of tiles and tables
    layout.py      how a problem is cut, and in which dtypes it is multiplied
    engine.py      the order of all steps
    operands.py    step 1: copies of x and w as they are multiplied
    begin.py       step 2: exact distances to the targets, tables filled
    products.py    step 3: products by cuBLAS
    statistics.py  step 4: the first pass over the products
    losses.py      step 5: from statistics to losses
    weigh.py       step 6: the second pass, which writes gradient weights over the products
    sums.py        step 7: sums of the weights along rows and columns
    inputs.py      step 8: the gradient of x
    centers.py     step 9: the gradient of w
    scale.py       times the upstream gradient
    tables.py      the tables that kernels share, with their columns by name
    prior.py       a prior per class, as the kernels read it
    near.py        distances by subtraction, for rows with near pairs
    arithmetic.py  functions that kernels share
    launch.py      launches of compiled kernels

The mathematics. Per row, t_j = s_j + a are the softened squared distances, c is the target, ref is the smallest t among
the wrong classes, q_j = (ref / t_j)^h with h = n / 2, and total is the sum of q over the wrong classes. Then

    L = h log(t_c / ref) + log(total)          loss = softplus(L)          1 - p_c = sigmoid(L)
    G_j = dloss/dt_j = -h p_j / t_j = -(h sigmoid(L) / (total ref)) (ref / t_j)^(h + 1)       G_c = h sigmoid(L) / t_c

With a prior b, t_j becomes t_j c_j with c_j = exp(2 (max b - b_j) / n) >= 1 wherever it is compared, is a reference or
is raised to h. The factor 1 / t_j of G stays as it is, so that

    L = h log(t_c / ref) + max b - b_c + log(total)       G_j = -h p_j / t_j (j != c)       dloss/db_j = -G_j t_j / h

The first pass multiplies by c_j, which ends at e^60. So only a wrong class whose weight is below e^(-30 n) of the
largest counts too much. The target has its exact prior. The second pass adds log2(e) (b_j - max b) to the logarithm of
p_j, and sums -G_j t_j / h along columns before G is rounded. Rows with near pairs add p_j to sums of their own.
dloss/dn holds b fixed: its sums are over log(t_j), without c_j.

In this form a small loss keeps its relative precision, and no power overflows at any exponent. An element needs one
logarithm and one exponential in each of the two passes. Rows with a near pair, for which products cancel, have kernels
of their own (`statistics_near`, `weigh_near`): their loops would take half of the registers of the main passes.

In kernels, names in capitals without a type are pointers. No program waits for another and none adds atomically, so the
same input gives the same bits. Nothing waits for the device.
"""
