//! What each opcode makes of its operands.

use super::*;

#[test]
fn good_instructions_pass() {
    passes(&[
        "ROOT r = f32[4] while(x), condition=negative, body=twice",
        "ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=add",
        "t = pred[] constant(true)\n ROOT r = f32[4] conditional(t, x, x), true_computation=twice, false_computation=twice",
        "ROOT r = f32[8] reshape(m)",
        "ROOT r = f32[4,2] transpose(m), dimensions={1,0}",
        "ROOT r = f32[2,2] slice(m), slice={[0:2], [0:4:2]}",
        "ROOT r = f32[1,4] dynamic-slice(m, i, i), dynamic_slice_sizes={1,4}",
        "ROOT r = f32[2,2] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "ROOT r = s32[2,2] dot(n, n), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "ROOT r = f32[2,2] dot(b, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "ROOT r = pred[2,4] compare(z, z), direction=NE",
    ]);
}

#[test]
fn elementwise_operands() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[4] add(x, i)",
        "ROOT r = f32[3] add(x, x)",
        "ROOT r = f32[2,4] add(m, b)",
        "ROOT r = s32[2,4] cosine(n)",
        "ROOT r = c64[2,4] floor(z)",
        "ROOT r = f32[2,4] popcnt(m)",
        "ROOT r = pred[2,4] negate(p)",
        "ROOT r = f32[2,4] and(m, m)",
        "ROOT r = u32[2,4] sign(u)",
        "ROOT r = c64[2,4] abs(z)",
        "ROOT r = f32[2,4] is-finite(m)",
        "ROOT r = c64[2,4] complex(b, b)",
        "ROOT r = pred[2,4] compare(z, z), direction=LT",
        "ROOT r = pred[2,4] compare(n, n), direction=LT, type=UNSIGNED",
        "ROOT r = f32[4] select(x, x, x)",
        "ROOT r = f32[4] select(p, x, x)",
        "ROOT r = f32[4] clamp(zero, x, i)",
        "ROOT r = f32[8] convert(n)",
        "ROOT r = c64[2,2] bitcast-convert(m)",
        "ROOT r = f64[2,4] bitcast-convert(m)",
        "ROOT r = f32[2,4] reduce-precision(m), exponent_bits=0, mantissa_bits=3",
        "ROOT r = bf16[2,4] stochastic-convert(m, n)",
        "ROOT r = token[] add(k, k)",
    ]), @r#"
    ROOT r = f32[4] add(x, i)
        the operands have different shapes: f32[4] and s32[]
    ROOT r = f32[3] add(x, x)
        it has the shape f32[3], and it must be f32[4]
    ROOT r = f32[2,4] add(m, b)
        the operands have different shapes: f32[2,4] and bf16[2,4]
    ROOT r = s32[2,4] cosine(n)
        operand 0 is s32[2,4], and it must be of floating-point or complex numbers
    ROOT r = c64[2,4] floor(z)
        operand 0 is c64[2,4], and it must be of floating-point numbers
    ROOT r = f32[2,4] popcnt(m)
        operand 0 is f32[2,4], and it must be of integers
    ROOT r = pred[2,4] negate(p)
        operand 0 is pred[2,4], and it must be of numbers
    ROOT r = f32[2,4] and(m, m)
        operand 0 is f32[2,4], and it must be of pred or integers
    ROOT r = u32[2,4] sign(u)
        operand 0 is u32[2,4], and it must be of signed numbers
    ROOT r = c64[2,4] abs(z)
        it has the shape c64[2,4], and it must be f32[2,4]
    ROOT r = f32[2,4] is-finite(m)
        it has the shape f32[2,4], and it must be pred[2,4]
    ROOT r = c64[2,4] complex(b, b)
        operand 0 is bf16[2,4], and complex numbers are made of f32 or f64
    ROOT r = pred[2,4] compare(z, z), direction=LT
        complex numbers have no order to compare by LT
    ROOT r = pred[2,4] compare(n, n), direction=LT, type=UNSIGNED
        it compares s32 as UNSIGNED, and that must be SIGNED
    ROOT r = f32[4] select(x, x, x)
        it selects by f32[4], and that must be pred
    ROOT r = f32[4] select(p, x, x)
        the predicate pred[2,4] must be a scalar or have the dimensions of f32[4]
    ROOT r = f32[4] clamp(zero, x, i)
        a bound has the shape s32[], and its element type must be that of f32[4]
    ROOT r = f32[8] convert(n)
        its shape is f32[8], and its dimensions must be [2,4]
    ROOT r = c64[2,2] bitcast-convert(m)
        it makes c64[2,2] of f32[2,4], and complex numbers can become complex numbers only
    ROOT r = f64[2,4] bitcast-convert(m)
        the last dimension of f32[2,4] must be 2
    ROOT r = f32[2,4] reduce-precision(m), exponent_bits=0, mantissa_bits=3
        exponent_bits is 0, and it must be at least 1
    ROOT r = bf16[2,4] stochastic-convert(m, n)
        operand 1 is s32[2,4], and it must be of unsigned integers
    ROOT r = token[] add(k, k)
        operand 0 is token[], and it must be an array
    "#);
}

#[test]
fn movements() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[4,2] broadcast(x), dimensions={1}",
        "ROOT r = f32[4,4] broadcast(m), dimensions={1}",
        "ROOT r = f32[9] reshape(m)",
        "ROOT r = f32[2,4] transpose(m), dimensions={1,0}",
        "ROOT r = f32[2,4] transpose(m), dimensions={0,0}",
        "ROOT r = f32[8] concatenate(x, m), dimensions={0}",
        "ROOT r = f32[7] concatenate(x, x), dimensions={0}",
        "ROOT r = f32[6] pad(x, zero), padding=1_2",
        "ROOT r = f32[6] pad(x, i), padding=1_1",
        "ROOT r = f32[0] pad(x, zero), padding=-9_1",
        "ROOT r = f32[4] reverse(x), dimensions={1}",
        "ROOT r = f32[2,5] slice(m), slice={[0:2], [0:5]}",
        "ROOT r = f32[2,9] dynamic-slice(m, i, i), dynamic_slice_sizes={2,9}",
        "ROOT r = f32[2,4] dynamic-slice(m, i), dynamic_slice_sizes={2,4}",
        "ROOT r = f32[4] dynamic-slice(x, zero), dynamic_slice_sizes={4}",
        "ROOT r = f32[2,4] dynamic-update-slice(m, q, i, i)",
        "ROOT r = s32[3] iota(), iota_dimension=1",
        "ROOT r = pred[3] iota(), iota_dimension=0",
        "ROOT r = s32[] get-dimension-size(x), dimensions={1}",
        "ROOT r = f32[<=4] set-dimension-size(x, zero), dimensions={0}",
        "ROOT r = f32[<=4] dynamic-reshape(x, zero)",
        "ROOT r = f32[3] bitcast(x)",
    ]), @r#"
    ROOT r = f32[4,2] broadcast(x), dimensions={1}
        its shape is f32[4,2], and its dimensions must be [4,4]
    ROOT r = f32[4,4] broadcast(m), dimensions={1}
        it maps 1 dimensions of an operand that has 2
    ROOT r = f32[9] reshape(m)
        it makes f32[9] with 9 elements of f32[2,4] with 8
    ROOT r = f32[2,4] transpose(m), dimensions={1,0}
        it has the shape f32[2,4], and it must be f32[4,2]
    ROOT r = f32[2,4] transpose(m), dimensions={0,0}
        dimension 0 stands there twice
    ROOT r = f32[8] concatenate(x, m), dimensions={0}
        the operands have different shapes: f32[4] and f32[2,4]
    ROOT r = f32[7] concatenate(x, x), dimensions={0}
        it has the shape f32[7], and it must be f32[8]
    ROOT r = f32[6] pad(x, zero), padding=1_2
        it has the shape f32[6], and it must be f32[7]
    ROOT r = f32[6] pad(x, i), padding=1_1
        operand 1 has the shape s32[], and its element type must be that of f32[4]
    ROOT r = f32[0] pad(x, zero), padding=-9_1
        a dimension of 4, padded by -9_1_0, would be negative or too large
    ROOT r = f32[4] reverse(x), dimensions={1}
        dimension 1 must lie below the rank 1
    ROOT r = f32[2,5] slice(m), slice={[0:2], [0:5]}
        [0:5:1] does not lie within a dimension of 4
    ROOT r = f32[2,9] dynamic-slice(m, i, i), dynamic_slice_sizes={2,9}
        the sizes [2,9] do not fit into f32[2,4]
    ROOT r = f32[2,4] dynamic-slice(m, i), dynamic_slice_sizes={2,4}
        it has 1 start indices for 2 dimensions, and needs one scalar for each or one vector
    ROOT r = f32[4] dynamic-slice(x, zero), dynamic_slice_sizes={4}
        a start index is f32[], and must be an integer
    ROOT r = f32[2,4] dynamic-update-slice(m, q, i, i)
        the update's dimensions [4,4] do not fit into f32[2,4]
    ROOT r = s32[3] iota(), iota_dimension=1
        iota_dimension 1 must lie below the rank 1
    ROOT r = pred[3] iota(), iota_dimension=0
        it is pred[3], and it must be of numbers
    ROOT r = s32[] get-dimension-size(x), dimensions={1}
        dimension 1 must lie below the rank 1
    ROOT r = f32[<=4] set-dimension-size(x, zero), dimensions={0}
        the size is f32[], and it must be s32[]
    ROOT r = f32[<=4] dynamic-reshape(x, zero)
        a size is f32[], and it must be s32[]
    ROOT r = f32[3] bitcast(x)
        it makes f32[3] with 96 bits of f32[4] with 128
    "#);
}

#[test]
fn gathers_and_scatters() {
    let gather = |attributes: &str| {
        message(&format!("a = s32[3,1] constant({{{{0}},{{1}},{{2}}}})\n ROOT r = f32[3,4] gather(q, a), {attributes}"))
    };
    let cases = [
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,4}",
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=3, slice_sizes={1,4}",
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,4}",
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={2,4}",
        "offset_dims={1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}",
        "offset_dims={1,0}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
    ];
    insta::assert_snapshot!(cases.map(gather).join("\n"), @r#"
    it has the shape f32[3,4], and it must be f32[3,4,1]
    index_vector_dim 3 must lie within the rank 2
    start_index_map names 2 dimensions, and its index vectors have 1 components
    the slices have 2 elements in the dimension 0, which collapses
    offset_dims={1} and 0 collapsed or batching dimensions do not make up the rank 2 of f32[4,4]
    it has the shape f32[3,4], and it must be f32[3,3]
    offset_dims={1,0} must be in rising order
    "#);

    let scatter = |updates: &str, attributes: &str| {
        let body = format!(
            "a = s32[3,1] constant({{{{0}},{{1}},{{2}}}})\n v = f32[] constant(1)\n w = {updates} broadcast(v), dimensions={{}}\n
             ROOT r = f32[4,4] scatter(q, a, w), {attributes}, index_vector_dim=1, to_apply=add"
        );
        message(&body)
    };
    let dims = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}";
    insta::assert_snapshot!(
        [
            scatter("f32[3,5]", dims),
            scatter("f32[2,4]", dims),
            scatter("f32[3]", dims),
            scatter("f32[3,4]", "update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}"),
            scatter("f32[3,4]", "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={4}"),
        ]
        .join("\n"),
        @r#"
    the updates f32[3,5] have 5 elements in the dimension 1, more than the 4 of f32[4,4]
    the updates f32[2,4] have 2 elements in the dimension 0, and the indices 3
    the updates f32[3] must have 2 dimensions: those of the window and of the indices
    update_window_dims={1} and 0 inserted or batching dimensions do not make up the rank 2 of f32[4,4]
    scatter_dims_to_operand_dims 4 must lie below the rank 2
    "#
    );
}

#[test]
fn products() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[4,4] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "ROOT r = f32[4,4] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "ROOT r = f32[2,2] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={}",
        "ROOT r = f32[2] dot(m, m), lhs_batch_dims={1}, rhs_batch_dims={1}, lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "ROOT r = f32[2,4] ragged-dot(m, q, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={0}, rhs_group_dims={1}",
        "l = f32[1,8,3] broadcast(zero), dimensions={}\n w = f32[3,3,2] broadcast(zero), dimensions={}\n ROOT r = f32[1,7,2] convolution(l, w), window={size=3}, dim_labels=b0f_0io->b0f",
        "l = f32[1,8,4] broadcast(zero), dimensions={}\n w = f32[3,3,2] broadcast(zero), dimensions={}\n ROOT r = f32[1,6,2] convolution(l, w), window={size=3}, dim_labels=b0f_0io->b0f",
        "l = f32[1,8,3] broadcast(zero), dimensions={}\n w = f32[3,3,2] broadcast(zero), dimensions={}\n ROOT r = f32[1,7,2] convolution(l, w), window={size=2}, dim_labels=b0f_0io->b0f",
        "l = f32[1,8,3] broadcast(zero), dimensions={}\n w = f32[3,3,2] broadcast(zero), dimensions={}\n ROOT r = f32[1,6,2] convolution(l, w), window={size=3 stride=0}, dim_labels=b0f_0io->b0f",
        "l = f32[1,8,6] broadcast(zero), dimensions={}\n w = f32[3,3,3] broadcast(zero), dimensions={}\n ROOT r = f32[1,6,3] convolution(l, w), window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=2",
    ]), @r#"
    ROOT r = f32[4,4] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        the contracting dimensions 1 and 0 have the sizes 4 and 2
    ROOT r = f32[4,4] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={1}
        its shape is f32[4,4], and its dimensions must be [2,2]
    ROOT r = f32[2,2] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={}
        the sides have 1 and 0 contracting dimensions
    ROOT r = f32[2] dot(m, m), lhs_batch_dims={1}, rhs_batch_dims={1}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
        dimension 1 stands there twice
    ROOT r = f32[2,4] ragged-dot(m, q, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={0}, rhs_group_dims={1}
        the group sizes s32[2,4] must have the dimensions [], then one for the groups
    l = f32[1,8,3] broadcast(zero), dimensions={}
     w = f32[3,3,2] broadcast(zero), dimensions={}
     ROOT r = f32[1,7,2] convolution(l, w), window={size=3}, dim_labels=b0f_0io->b0f
        its shape is f32[1,7,2], and its dimensions must be [1,6,2]
    l = f32[1,8,4] broadcast(zero), dimensions={}
     w = f32[3,3,2] broadcast(zero), dimensions={}
     ROOT r = f32[1,6,2] convolution(l, w), window={size=3}, dim_labels=b0f_0io->b0f
        the input has 4 features in 1 groups, and the kernel takes 3
    l = f32[1,8,3] broadcast(zero), dimensions={}
     w = f32[3,3,2] broadcast(zero), dimensions={}
     ROOT r = f32[1,7,2] convolution(l, w), window={size=2}, dim_labels=b0f_0io->b0f
        the window's sizes 2 must be the kernel's 3
    l = f32[1,8,3] broadcast(zero), dimensions={}
     w = f32[3,3,2] broadcast(zero), dimensions={}
     ROOT r = f32[1,6,2] convolution(l, w), window={size=3 stride=0}, dim_labels=b0f_0io->b0f
        the window's stride is 0, and it must be positive
    l = f32[1,8,6] broadcast(zero), dimensions={}
     w = f32[3,3,3] broadcast(zero), dimensions={}
     ROOT r = f32[1,6,3] convolution(l, w), window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=2
        its 3 output features cannot be split in 2 groups
    "#);
}

#[test]
fn algebra() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[2,4] cholesky(m)",
        "ROOT r = f32[2,4] triangular-solve(q, m), left_side=true, transpose_a=NO_TRANSPOSE",
        "ROOT r = c64[2,4] fft(m), fft_type=FFT, fft_length={4}",
        "ROOT r = c64[2,3] fft(m), fft_type=RFFT, fft_length={5}",
        "ROOT r = c64[2,4] fft(m), fft_type=RFFT, fft_length={4}",
        "ROOT r = (f32[2,4], f32[4], f32[4]) batch-norm-training(m, x, x), epsilon=0.1, feature_index=2",
        "ROOT r = (f32[2,4], f32[2], f32[2]) batch-norm-training(m, x, x), epsilon=0.1, feature_index=0",
        "ROOT r = s32[3] rng(i, i), distribution=rng_normal",
        "h = s16[] constant(1)\n ROOT r = s16[3] rng(h, h), distribution=rng_uniform",
        "ROOT r = (f32[5], u32[3]) rng-bit-generator(x), algorithm=rng_default",
        "ROOT r = u64[3] rng-get-and-update-state(), delta=1",
    ]), @r#"
    ROOT r = f32[2,4] cholesky(m)
        f32[2,4] is no square matrix
    ROOT r = f32[2,4] triangular-solve(q, m), left_side=true, transpose_a=NO_TRANSPOSE
        f32[4,4] on the left side does not fit f32[2,4]
    ROOT r = c64[2,4] fft(m), fft_type=FFT, fft_length={4}
        operand 0 is f32[2,4], and it must be of complex numbers
    ROOT r = c64[2,3] fft(m), fft_type=RFFT, fft_length={5}
        the last dimensions of f32[2,4] must be [5] for fft_length={5}
    ROOT r = c64[2,4] fft(m), fft_type=RFFT, fft_length={4}
        it has the shape c64[2,4], and it must be c64[2,3]
    ROOT r = (f32[2,4], f32[4], f32[4]) batch-norm-training(m, x, x), epsilon=0.1, feature_index=2
        feature_index 2 must lie below the rank 2
    ROOT r = (f32[2,4], f32[2], f32[2]) batch-norm-training(m, x, x), epsilon=0.1, feature_index=0
        operand 1 has the shape f32[4], and it must be f32[2]
    ROOT r = s32[3] rng(i, i), distribution=rng_normal
        it is s32[3], and it must be of floating-point numbers
    h = s16[] constant(1)
     ROOT r = s16[3] rng(h, h), distribution=rng_uniform
        it is s16[3], and random numbers are f16, bf16 or real ones of 32 or 64 bits
    ROOT r = (f32[5], u32[3]) rng-bit-generator(x), algorithm=rng_default
        its first part has the shape f32[5], and it must be f32[4]
    ROOT r = u64[3] rng-get-and-update-state(), delta=1
        it has the shape u64[3], and it must be u64[2]
    "#);
}

#[test]
fn reductions() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[4] reduce(m, zero), dimensions={1}, to_apply=add",
        "ROOT r = f32[2] reduce(m, zero), dimensions={2}, to_apply=add",
        "ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=twice",
        "ROOT r = f32[2] reduce(m, x), dimensions={1}, to_apply=add",
        "ROOT r = s32[2] reduce(n, i), dimensions={1}, to_apply=add",
        "ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=larger",
        "ROOT r = f32[2,2] reduce-window(m, zero), window={size=1x2 stride=1x1}, to_apply=add",
        "ROOT r = f32[2,2] reduce-window(m, zero), window={size=1x0}, to_apply=add",
        "ROOT r = f32[2] reduce-window(m, zero), window={size=2}, to_apply=add",
        "ROOT r = f32[2,4] select-and-scatter(m, m, zero), window={size=1x2 stride=1x2}, select=larger, scatter=add",
        "ROOT r = f32[2,4] select-and-scatter(m, m, zero), window={size=1x1}, select=add, scatter=add",
        "ROOT r = f32[2,4] sort(m), dimensions={2}, to_apply=larger",
        "ROOT r = f32[2,4] sort(m), dimensions={1}, to_apply=add",
        "ROOT r = s32[2,4] sort(n), dimensions={1}, to_apply=larger",
        "ROOT r = (f32[2,4], f32[4]) sort(m, x), dimensions={0}, to_apply=larger",
        "ROOT r = f32[2,4] map(m, q), dimensions={0,1}, to_apply=add",
        "ROOT r = (f32[2,5], s32[2,5]) topk(m), k=5",
        "t = (f32[2,2], s32[2,2]) topk(m), k=2\n ROOT r = ((f32[2,2], s32[2,2])) tuple(t)",
        "ROOT r = f32[2,4] scan(m, x), dimensions={0}, num_carries=3, to_apply=add",
    ]), @r#"
    ROOT r = f32[4] reduce(m, zero), dimensions={1}, to_apply=add
        it has the shape f32[4], and it must be f32[2]
    ROOT r = f32[2] reduce(m, zero), dimensions={2}, to_apply=add
        dimension 2 must lie below the rank 2
    ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=twice
        'twice' has 1 parameters, and 2 are passed
    ROOT r = f32[2] reduce(m, x), dimensions={1}, to_apply=add
        the initial value f32[4] must be a scalar
    ROOT r = s32[2] reduce(n, i), dimensions={1}, to_apply=add
        parameter 0 of 'add' is f32[], and it must be s32[]
    ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=larger
        result 0 of 'larger' is pred[], and it must be f32[]
    ROOT r = f32[2,2] reduce-window(m, zero), window={size=1x2 stride=1x1}, to_apply=add
        it has the shape f32[2,2], and it must be f32[2,3]
    ROOT r = f32[2,2] reduce-window(m, zero), window={size=1x0}, to_apply=add
        the window's size is 0, and it must be positive
    ROOT r = f32[2] reduce-window(m, zero), window={size=2}, to_apply=add
        the window has 1 dimensions instead of 2
    ROOT r = f32[2,4] select-and-scatter(m, m, zero), window={size=1x2 stride=1x2}, select=larger, scatter=add
        the source f32[2,4] must have the dimensions [2,2] of the window's places
    ROOT r = f32[2,4] select-and-scatter(m, m, zero), window={size=1x1}, select=add, scatter=add
        'add' returns f32[], and it must return pred[]
    ROOT r = f32[2,4] sort(m), dimensions={2}, to_apply=larger
        dimension 2 must lie below the rank 2
    ROOT r = f32[2,4] sort(m), dimensions={1}, to_apply=add
        'add' returns f32[], and it must return pred[]
    ROOT r = s32[2,4] sort(n), dimensions={1}, to_apply=larger
        parameter 'a.1' is f32[], and it must be s32[]
    ROOT r = (f32[2,4], f32[4]) sort(m, x), dimensions={0}, to_apply=larger
        its operands have different dimensions: f32[2,4] and f32[4]
    ROOT r = f32[2,4] map(m, q), dimensions={0,1}, to_apply=add
        its operands have different dimensions: f32[2,4] and f32[4,4]
    ROOT r = (f32[2,5], s32[2,5]) topk(m), k=5
        k is 5, and the last dimension of f32[2,4] has 4
    t = (f32[2,2], s32[2,2]) topk(m), k=2
     ROOT r = ((f32[2,2], s32[2,2])) tuple(t)
        it uses the whole of 't', a topk: take its parts by get-tuple-element
    ROOT r = f32[2,4] scan(m, x), dimensions={0}, num_carries=3, to_apply=add
        num_carries is 3, for 2 operands and 1 results
    "#);
}

#[test]
fn calls() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[2,4] while(m), condition=negative, body=twice",
        "ROOT r = f32[4] while(x), condition=twice, body=twice",
        "ROOT r = f32[4] call(m), to_apply=twice",
        "ROOT r = f32[4] call(x, x), to_apply=twice",
        "ROOT r = f32[4] conditional(i, m, x), branch_computations={twice, twice}",
        "ROOT r = f32[4] fusion(m), kind=kLoop, calls=twice",
        "ROOT r = f32[4] fusion(), kind=kLoop, calls=twice",
        "ROOT r = f32[4] custom-call(x, x), custom_call_target=\"Sharding\", sharding={replicated}",
        "ROOT r = f32[4] custom-call(x, x), custom_call_target=\"xla.sdy.FuncResultSharding\"",
        "ROOT r = f32[4] custom-call(x), custom_call_target=\"t\", output_to_operand_aliasing={{}: (1, {})}",
        "ROOT r = f32[4] custom-call(x), custom_call_target=\"t\", output_to_operand_aliasing={{0}: (0, {})}",
        "ROOT r = f32[4] custom-call(m), custom_call_target=\"t\", output_to_operand_aliasing={{}: (0, {})}",
        "t = (f32[4], f32[2,4]) tuple(x, m)\n ROOT r = f32[4] get-tuple-element(t), index=1",
        "t = (f32[4], f32[2,4]) tuple(x, m)\n ROOT r = f32[4] get-tuple-element(t), index=2",
        "ROOT r = (f32[4], f32[4]) tuple(x, m)",
    ]), @r#"
    ROOT r = f32[2,4] while(m), condition=negative, body=twice
        parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    ROOT r = f32[4] while(x), condition=twice, body=twice
        'twice' returns f32[4], and it must return pred[]
    ROOT r = f32[4] call(m), to_apply=twice
        parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    ROOT r = f32[4] call(x, x), to_apply=twice
        'twice' has 1 parameters, and 2 are passed
    ROOT r = f32[4] conditional(i, m, x), branch_computations={twice, twice}
        parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    ROOT r = f32[4] fusion(m), kind=kLoop, calls=twice
        parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    ROOT r = f32[4] fusion(), kind=kLoop, calls=twice
        'twice' has 1 parameters, and 0 are passed
    ROOT r = f32[4] custom-call(x, x), custom_call_target="Sharding", sharding={replicated}
        a call of Sharding has 1 operand, and this one 2
    ROOT r = f32[4] custom-call(x, x), custom_call_target="xla.sdy.FuncResultSharding"
        a call of xla.sdy.FuncResultSharding has 1 operand, and this one 2
    ROOT r = f32[4] custom-call(x), custom_call_target="t", output_to_operand_aliasing={{}: (1, {})}
        output_to_operand_aliasing names the part {} of operand 1, which is not there
    ROOT r = f32[4] custom-call(x), custom_call_target="t", output_to_operand_aliasing={{0}: (0, {})}
        output_to_operand_aliasing names the result {0}, which f32[4] does not have
    ROOT r = f32[4] custom-call(m), custom_call_target="t", output_to_operand_aliasing={{}: (0, {})}
        output_to_operand_aliasing puts f32[4] in the place of f32[2,4]
    t = (f32[4], f32[2,4]) tuple(x, m)
     ROOT r = f32[4] get-tuple-element(t), index=1
        it has the shape f32[4], and it must be f32[2,4]
    t = (f32[4], f32[2,4]) tuple(x, m)
     ROOT r = f32[4] get-tuple-element(t), index=2
        (f32[4], f32[2,4]) has no element 2
    ROOT r = (f32[4], f32[4]) tuple(x, m)
        it has the shape (f32[4], f32[4]), and it must be (f32[4], f32[2,4])
    "#);
}

#[test]
fn halves() {
    insta::assert_snapshot!(messages([
        "ROOT r = (f32[4], u32[], token[]) recv(zero)",
        "s = (f32[4], u32[], token[]) send(x, k), channel_id=1\n ROOT r = token[] send-done(s), channel_id=2",
        "ROOT r = token[] send-done(k), channel_id=2",
        "ROOT r = (f32[4], f32[5], u32[]) copy-start(x)",
        "ROOT r = f32[4] copy-done(x)",
        "s = (f32[4], f32[4], u32[]) copy-start(x)\n ROOT r = f32[5] copy-done(s)",
        "ROOT r = f32[4] infeed(k)",
        "ROOT r = token[] outfeed(x, k), outfeed_shape=f32[5]",
        "ROOT r = f32[4] add-dependency(x, x)",
        "ROOT r = f32[4] after-all(k)",
        "ROOT r = ((f32[4], f32[4]), f32[4], u32[]) async-start(x, x), calls=twice",
        "ROOT r = ((f32[4]), f32[5], u32[]) async-start(x), calls=twice",
        "ROOT r = (f32[4], f32[4]) async-start(x), calls=twice",
        "ROOT r = f32[4] async-done(x)",
        "s = ((f32[4]), f32[4], u32[]) async-start(x), calls=twice\n ROOT r = f32[5] async-done(s)",
        "ROOT r = f32[4] all-reduce-done(x)",
        "ROOT r = f32[4] collective-permute-done(x)",
    ]), @r#"
    ROOT r = (f32[4], u32[], token[]) recv(zero)
        operand 0 is f32[], and it must be a token
    s = (f32[4], u32[], token[]) send(x, k), channel_id=1
     ROOT r = token[] send-done(s), channel_id=2
        its channel_id is 2, and it ends one of 1
    ROOT r = token[] send-done(k), channel_id=2
        it ends 'k', which is no send but parameter
    ROOT r = (f32[4], f32[5], u32[]) copy-start(x)
        the source has the shape f32[5], and it must be f32[4]
    ROOT r = f32[4] copy-done(x)
        it ends 'x.2', which is no copy-start but parameter
    s = (f32[4], f32[4], u32[]) copy-start(x)
     ROOT r = f32[5] copy-done(s)
        it has the shape f32[5], and it must be f32[4]
    ROOT r = f32[4] infeed(k)
        its shape is f32[4], and it must be a tuple of the data and token[]
    ROOT r = token[] outfeed(x, k), outfeed_shape=f32[5]
        outfeed_shape has the shape f32[5], and it must be f32[4]
    ROOT r = f32[4] add-dependency(x, x)
        operand 1 is f32[4], and it must be a token
    ROOT r = f32[4] after-all(k)
        it is f32[4], and it must be a token
    ROOT r = ((f32[4], f32[4]), f32[4], u32[]) async-start(x, x), calls=twice
        'twice' has 1 parameters, and 2 are passed
    ROOT r = ((f32[4]), f32[5], u32[]) async-start(x), calls=twice
        its results are f32[5], and 'twice' returns f32[4]
    ROOT r = (f32[4], f32[4]) async-start(x), calls=twice
        its shape is (f32[4], f32[4]), and it must be a tuple of the operands' tuple, the results and more
    ROOT r = f32[4] async-done(x)
        it continues 'x.2', and that is no asynchronous operation
    s = ((f32[4]), f32[4], u32[]) async-start(x), calls=twice
     ROOT r = f32[5] async-done(s)
        it has the shape f32[5], and it must be f32[4]
    ROOT r = f32[4] all-reduce-done(x)
        it ends 'x.2', which is no all-reduce-start but parameter
    ROOT r = f32[4] collective-permute-done(x)
        it ends 'x.2', which is no collective-permute-start but parameter
    "#);
}
