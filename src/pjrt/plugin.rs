//! Loading a plugin and calling its functions.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::copy_text;
use super::error::{Error, ErrorCode, Result};
use super::ffi::{self, Args, Query};
use super::value::{Value, read_named_values};

/// The version of the PJRT C API that a plugin implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Differs only between incompatible APIs.
    pub major: i32,
    /// Grows with every addition.
    pub minor: i32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// An extension that a plugin offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its number in `PJRT_Extension_Type`.
    pub number: i32,
    /// Its name there; `None` for extensions newer than this layer.
    pub name: Option<&'static str>,
}

/// A loaded PJRT plugin. Clones share one; it stays loaded until the process ends.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    path: PathBuf,
    version: ApiVersion,
    slots: [Option<NonNull<c_void>>; ffi::SLOT_NAMES.len()],
    extension_start: *const ffi::ExtensionBase,
}

// SAFETY: the table is never written after loading, and PJRT functions may be called from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Plugins by canonical path, so that each is initialized once.
static LOADED: LazyLock<Mutex<HashMap<PathBuf, Plugin>>> = LazyLock::new(Mutex::default);

impl Plugin {
    /// Loads and initializes the plugin in the library at `path`, or returns the one that was loaded from it before.
    ///
    /// Fails when the file is no library, exports no `GetPjrtApi`, or speaks an API that we do not.
    pub fn load(path: impl AsRef<Path>) -> Result<Plugin> {
        let path = path.as_ref();
        let load_error = |reason: String| Error::Load { path: path.to_owned(), reason };
        let canonical = path.canonicalize().map_err(|error| load_error(error.to_string()))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&canonical) {
            return Ok(plugin.clone());
        }
        // SAFETY: loading runs the library's constructors; that is what the user asked for by naming it.
        let library = unsafe { libloading::Library::new(&canonical) }.map_err(|error| load_error(error.to_string()))?;
        // Code and statics of the plugin are referenced from threads and handles that outlive any scope of ours.
        let library = Box::leak(Box::new(library));
        // SAFETY: the symbol of this name has this type in every PJRT plugin.
        let get_api = unsafe { library.get::<ffi::GetPjrtApi>(b"GetPjrtApi\0") }.map_err(|_| Error::NotAPlugin {
            path: path.to_owned(),
            reason: "it exports no function GetPjrtApi".to_owned(),
        })?;
        // SAFETY: GetPjrtApi takes nothing and returns a table that lives as long as the library.
        let plugin = unsafe { Plugin::from_api(path, get_api()) }?;
        plugin.initialize()?;
        loaded.insert(canonical, plugin.clone());
        Ok(plugin)
    }

    /// # Safety
    /// `api` is null or points to a `PJRT_Api` that lives for ever.
    unsafe fn from_api(path: &Path, api: *const ffi::ApiHead) -> Result<Plugin> {
        let unusable = |reason: String| Error::NotAPlugin { path: path.to_owned(), reason };
        if api.is_null() {
            return Err(unusable("GetPjrtApi returned null".to_owned()));
        }
        // SAFETY: a non-null api starts with its size.
        let size = unsafe { (*api).struct_size };
        let head = size_of::<ffi::ApiHead>();
        if size < head {
            return Err(unusable(format!("its function table is {size} bytes long, the version alone takes {head}")));
        }
        // SAFETY: the table is long enough for its head.
        let (version, extension_start) = unsafe {
            let version = &(*api).version;
            (ApiVersion { major: version.major, minor: version.minor }, (*api).extension_start)
        };
        let oldest = ApiVersion { major: ffi::API_MAJOR, minor: ffi::OLDEST_MINOR };
        if version.major != ffi::API_MAJOR || version < oldest {
            return Err(unusable(format!(
                "it speaks PJRT C API {version}, this program {}.x from {oldest} on",
                ffi::API_MAJOR
            )));
        }
        let mut slots = [None; ffi::SLOT_NAMES.len()];
        let available = (size - head) / size_of::<*mut c_void>();
        for (index, slot) in slots.iter_mut().enumerate().take(available) {
            // SAFETY: slot `index` lies within the table's own size.
            *slot = NonNull::new(unsafe { *api.byte_add(head).cast::<*mut c_void>().add(index) });
        }
        Ok(Plugin(Arc::new(Inner { path: path.to_owned(), version, slots, extension_start })))
    }

    fn initialize(&self) -> Result<()> {
        // A plugin without the slot needs no initialization.
        if self.slot::<ffi::PluginInitialize>().is_some() {
            // SAFETY: takes no input.
            unsafe { self.call::<ffi::PluginInitialize>(|_| {}) }?;
        }
        Ok(())
    }

    /// The file that the plugin was loaded from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The version of the PJRT C API that the plugin was built with.
    pub fn api_version(&self) -> ApiVersion {
        self.0.version
    }

    /// What the plugin says of itself, such as `xla_version` and `stablehlo_current_version`.
    pub fn attributes(&self) -> Result<BTreeMap<String, Value>> {
        // SAFETY: takes no input.
        let args = unsafe { self.call::<ffi::PluginAttributes>(|_| {}) }?;
        // SAFETY: the plugin's own list of its attributes.
        Ok(unsafe { read_named_values(args.attributes, args.num_attributes) })
    }

    /// The extensions in the plugin's chain.
    pub fn extensions(&self) -> Vec<Extension> {
        self.extension_chain()
            .map(|base| {
                let number = base.kind;
                let name = usize::try_from(number).ok().and_then(|index| ffi::EXTENSION_NAMES.get(index)).copied();
                Extension { number, name }
            })
            .collect()
    }

    fn extension_chain(&self) -> impl Iterator<Item = &ffi::ExtensionBase> {
        /// More than any plugin has; a chain that bites its tail still ends.
        const LONGEST: usize = 256;
        // SAFETY: the chain is null-terminated and lives as long as the plugin, which is for ever.
        let as_ref = |base: *const ffi::ExtensionBase| unsafe { base.as_ref() };
        std::iter::successors(as_ref(self.0.extension_start), move |base| as_ref(base.next)).take(LONGEST)
    }

    /// The extension with this number, if its struct is at least `size` bytes long.
    pub(super) fn extension(&self, number: c_int, size: usize) -> Option<*const ffi::ExtensionBase> {
        self.extension_chain().find(|base| base.kind == number && base.struct_size >= size).map(std::ptr::from_ref)
    }

    /// The plugin's name in messages: its file and version.
    fn name(&self) -> String {
        let file = self.0.path.file_name().unwrap_or(OsStr::new("?"));
        format!("{} (PJRT {})", file.display(), self.0.version)
    }

    pub(super) fn lacks(&self, what: impl Into<String>) -> Error {
        Error::Lacks { plugin: self.name(), what: what.into() }
    }

    pub(super) fn option_ignored(&self, option: &str, asked: &Value, found: String) -> Error {
        Error::OptionIgnored { plugin: self.name(), option: option.to_owned(), asked: asked.to_string(), found }
    }

    fn slot<A: Args>(&self) -> Option<unsafe extern "C" fn(*mut A) -> *mut ffi::Error> {
        // SAFETY: the slot at A's index holds the function that takes A, by the header's order of slots.
        self.0.slots[A::SLOT].map(|slot| unsafe { std::mem::transmute(slot) })
    }

    /// Calls the function that takes `A`, with arguments that are all zero but for what `fill` sets.
    ///
    /// # Safety
    /// What `fill` sets are valid arguments of the function, for as long as it needs them.
    pub(super) unsafe fn call<A: Args>(&self, fill: impl FnOnce(&mut A)) -> Result<A> {
        let function = self.slot::<A>().ok_or_else(|| self.lacks(A::NAME))?;
        let mut args = A::zeroed();
        fill(&mut args);
        // SAFETY: passed on from the caller.
        let error = unsafe { function(&mut args) };
        // SAFETY: the function returned its error to us.
        unsafe { self.check(error, A::NAME) }?;
        Ok(args)
    }

    /// Asks the function that takes `Q` about `handle`.
    ///
    /// # Safety
    /// `handle` is a live handle of this plugin.
    pub(super) unsafe fn query<Q: Query>(&self, handle: NonNull<Q::Handle>) -> Result<Q> {
        // SAFETY: the handle is live, and a query has no other input.
        unsafe { self.call::<Q>(|args| args.set_handle(handle.as_ptr())) }
    }

    /// As [`query`](Self::query) for functions that destroy the handle. A failure is logged: nobody can act on it.
    ///
    /// # Safety
    /// `handle` is a live handle of this plugin that is never used again.
    pub(super) unsafe fn destroy<Q: Query>(&self, handle: NonNull<Q::Handle>) {
        // SAFETY: passed on from the caller.
        if let Err(error) = unsafe { self.query::<Q>(handle) } {
            tracing::warn!("{error}");
        }
    }

    /// Takes over an error that the plugin returned; null is success.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that the caller owns.
    pub(super) unsafe fn check(&self, error: *mut ffi::Error, context: &'static str) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let code = self.slot::<ffi::ErrorGetCode>().map_or(ErrorCode::Unknown, |get_code| {
            let mut args = ffi::ErrorGetCode::zeroed();
            args.error = error;
            // SAFETY: the error is live. An error of asking for the code of an error would be one too many.
            unsafe { get_code(&mut args) };
            ErrorCode::from_number(args.code.cast_unsigned())
        });
        let message = self.slot::<ffi::ErrorMessage>().map_or_else(
            || "the plugin gives no message".to_owned(),
            |message| {
                let mut args = ffi::ErrorMessage::zeroed();
                args.error = error;
                // SAFETY: the error is live, and the message is copied before it is destroyed.
                unsafe {
                    message(&mut args);
                    copy_text(args.message, args.message_size)
                }
            },
        );
        if let Some(destroy) = self.slot::<ffi::ErrorDestroy>() {
            let mut args = ffi::ErrorDestroy::zeroed();
            args.error = error;
            // SAFETY: we own the error and do not use it again.
            unsafe { destroy(&mut args) };
        }
        Err(Error::Plugin { code, message: message.trim_end_matches('\n').to_owned(), context })
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("path", &self.0.path).field("api_version", &self.0.version).finish()
    }
}
