//! The floating-point environment that Rust code may count on.

/// While it lives, this thread computes with the environment that Rust code is compiled for, then with its own again.
///
/// XLA's threads treat denormal numbers as zero. faer's masks for the ends of complex vectors are denormal numbers, and
/// without them its results are wrong.
#[cfg(target_arch = "x86_64")]
pub(super) struct DefaultEnvironment(u32);

#[cfg(target_arch = "x86_64")]
impl DefaultEnvironment {
    /// All exceptions masked, round to nearest, denormal numbers as they are.
    const DEFAULT: u32 = 0x1f80;

    pub fn enter() -> Self {
        let mut before = 0_u32;
        // SAFETY: stores the register to a place of its size.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack, preserves_flags)) };
        set(Self::DEFAULT);
        DefaultEnvironment(before)
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for DefaultEnvironment {
    fn drop(&mut self) {
        set(self.0);
    }
}

#[cfg(target_arch = "x86_64")]
fn set(value: u32) {
    // SAFETY: the value is the default, or was in the register before: no reserved bit is set.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags)) };
}

/// Elsewhere the environment stays as it is.
#[cfg(not(target_arch = "x86_64"))]
pub(super) struct DefaultEnvironment;

#[cfg(not(target_arch = "x86_64"))]
impl DefaultEnvironment {
    pub fn enter() -> Self {
        DefaultEnvironment
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn denormal_numbers_count_while_it_lives() {
        let halved = || black_box(f32::MIN_POSITIVE) / black_box(2.0);
        // Flush to zero, as XLA's threads do.
        set(DefaultEnvironment::DEFAULT | 0x8040);
        let before = halved();
        let within = {
            let _environment = DefaultEnvironment::enter();
            halved()
        };
        let after = halved();
        set(DefaultEnvironment::DEFAULT);
        assert_eq!((before.to_bits(), after.to_bits()), (0, 0));
        assert_eq!(within.to_bits(), 0x0040_0000);
    }
}
