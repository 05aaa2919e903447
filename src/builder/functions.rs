//! Functions of neural networks, as of `jax.nn`.

use super::Op;

impl<'b> Op<'b> {
    /// max(x, 0).
    #[track_caller]
    pub fn relu(self) -> Op<'b> {
        self.gt(0).select(self, 0)
    }

    /// x · sigmoid(x).
    #[track_caller]
    pub fn silu(self) -> Op<'b> {
        self * self.sigmoid()
    }

    /// The Gaussian error linear unit in its approximation by tanh, the default of `jax.nn.gelu`.
    #[track_caller]
    pub fn gelu(self) -> Op<'b> {
        let inner = (self + 0.044715 * (self * self * self)) * (2.0 / std::f64::consts::PI).sqrt();
        self * (0.5 * (1.0 + inner.tanh()))
    }

    /// log Σ eˣ along an axis, which goes, without overflow.
    #[track_caller]
    pub fn logsumexp(self, axis: i64) -> Op<'b> {
        let largest = self.finite_max(axis);
        let sum = (self - largest).exp().sum(&[axis]);
        sum.log() + largest.squeeze(&[axis])
    }

    /// eˣ / Σ eˣ along an axis.
    #[track_caller]
    pub fn softmax(self, axis: i64) -> Op<'b> {
        let powers = (self - self.reduce_max(&[axis]).expand_dims_like(self, axis).stop_gradient()).exp();
        powers / powers.sum(&[axis]).expand_dims_like(self, axis)
    }

    /// log(eˣ / Σ eˣ) along an axis.
    #[track_caller]
    pub fn log_softmax(self, axis: i64) -> Op<'b> {
        let shifted = self - self.reduce_max(&[axis]).expand_dims_like(self, axis).stop_gradient();
        shifted - shifted.exp().sum(&[axis]).log().expand_dims_like(self, axis)
    }

    /// (x − mean) / √(variance + ε) along an axis: a layer norm before its scale and shift.
    #[track_caller]
    pub fn normalize(self, axis: i64, epsilon: f64) -> Op<'b> {
        let centered = self - self.mean(&[axis]).expand_dims_like(self, axis);
        let variance = (centered * centered).mean(&[axis]).expand_dims_like(self, axis);
        centered * (variance + epsilon).rsqrt()
    }

    /// The largest element along an axis, which stays, or 0 where it is infinite.
    #[track_caller]
    fn finite_max(self, axis: i64) -> Op<'b> {
        let largest = self.reduce_max(&[axis]).expand_dims_like(self, axis);
        largest.is_finite().select(largest, 0).stop_gradient()
    }

    /// The axis back that a reduction of `like` took away.
    #[track_caller]
    fn expand_dims_like(self, like: Op<'b>, axis: i64) -> Op<'b> {
        match like.axis("expand_dims", axis) {
            Some(axis) => self.expand_dims(axis as i64),
            None => self.builder.failed(),
        }
    }
}
