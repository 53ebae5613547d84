//! The binding to librados, the client library of RADOS. It is loaded at run time, so neither the
//! build nor a program that opens no pool needs anything of Ceph.
//!
//! The functions and constants are declared in `rados/librados.h` of Ceph 16, and also in later
//! versions.

// Foreign functions are unsafe to call. This is the only module of the crate that contains such
// code.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use libloading::Library;

use crate::objects::{Step, Write};

/// The shared library, and the package of Debian and Ubuntu that has it.
pub(crate) const LIBRARY: &str = "librados.so.2";
pub(crate) const PACKAGE: &str = "librados2";

/// The result of a function of librados: a count, or the error number.
pub(crate) type Answer<T> = Result<T, i32>;

/// `LIBRADOS_OPERATION_FULL_TRY`: a full pool is an error at once; without it the library waits
/// until the pool has space.
const FULL_TRY: c_int = 64;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;
/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 1;

const EINVAL: i32 = quell_vfs::errno::EINVAL;
const ENOENT: i32 = quell_vfs::errno::ENOENT;
const ERANGE: i32 = quell_vfs::errno::ERANGE;

/// A handle that librados defines: it is only passed back to the library.
type Handle = *mut c_void;
type Text = *const c_char;

/// Declares the functions as fields of a struct, which is filled from the library.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            // SAFETY: these are types; each call of a function states its reason.
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// # Safety
            /// The functions of the library must have the types that are stated here.
            unsafe fn find(library: &Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the caller guarantees the types.
                Ok(Functions { $($name: *unsafe { library.get(concat!("rados_", stringify!($name), "\0")) }?,)* })
            }
        }
    };
}

functions! {
    create2(*mut Handle, Text, Text, u64) -> c_int;
    conf_read_file(Handle, Text) -> c_int;
    conf_set(Handle, Text, Text) -> c_int;
    connect(Handle) -> c_int;
    shutdown(Handle);
    ioctx_create(Handle, Text, *mut Handle) -> c_int;
    ioctx_destroy(Handle);
    ioctx_set_namespace(Handle, Text);
    create_write_op() -> Handle;
    release_write_op(Handle);
    write_op_create(Handle, c_int, Text);
    write_op_cmpxattr(Handle, Text, u8, Text, usize);
    write_op_setxattr(Handle, Text, Text, usize);
    write_op_write(Handle, Text, usize, u64);
    write_op_write_full(Handle, Text, usize);
    write_op_append(Handle, Text, usize);
    write_op_remove(Handle);
    aio_write_op_operate(Handle, Handle, Handle, Text, *mut i64, c_int) -> c_int;
    aio_read(Handle, Text, Handle, *mut c_char, usize, u64) -> c_int;
    aio_create_completion2(Handle, Option<extern "C" fn(Handle, Handle)>, *mut Handle) -> c_int;
    aio_wait_for_complete(Handle) -> c_int;
    aio_get_return_value(Handle) -> c_int;
    aio_release(Handle);
    stat(Handle, Text, *mut u64, *mut i64) -> c_int;
    getxattr(Handle, Text, Text, *mut c_char, usize) -> c_int;
    nobjects_list_open(Handle, *mut Handle) -> c_int;
    nobjects_list_next(Handle, *mut Text, *mut Text, *mut Text) -> c_int;
    nobjects_list_close(Handle);
}

/// The library and its functions.
struct Loaded {
    functions: Functions,
    _library: Library,
}

/// Returns the functions of librados, and loads the library if this process has not yet done so. It
/// stays loaded, because its threads run until the process ends.
fn functions() -> Result<&'static Functions, libloading::Error> {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(&loaded.functions);
    }
    // SAFETY: librados and its dependencies have initializers of ordinary C++ libraries, which have
    // no requirements.
    let library = unsafe { Library::new(LIBRARY) }?;
    // SAFETY: the types match the header of librados; the number in the name of the library changes
    // with an incompatible change.
    let functions = unsafe { Functions::find(&library) }?;
    Ok(&LOADED.get_or_init(|| Loaded { functions, _library: library }).functions)
}

/// The reason for which a pool could not be opened.
pub(crate) enum OpenFailure {
    /// The library cannot be loaded, or lacks a function.
    Library(libloading::Error),
    /// A step failed with an error number.
    Step(&'static str, i32),
}

/// Parameters of a connection.
pub(crate) struct Connection<'a> {
    /// The file of the cluster's configuration, or `None` for the default of librados.
    pub(crate) configuration: Option<&'a CStr>,
    /// The name of the client, such as `client.admin`.
    pub(crate) client: &'a CStr,
    /// Options of the configuration and their values.
    pub(crate) options: &'a [(&'a CStr, CString)],
    pub(crate) pool: &'a CStr,
    pub(crate) namespace: &'a CStr,
}

/// A connection to a cluster, which ends when the value is dropped.
struct Cluster {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: librados allows the use of a connection by several threads, and by other threads than the
// one that opened it.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: `create2` returned the handle, and nothing uses it after the end of this value.
        unsafe { (self.functions.shutdown)(self.handle) }
    }
}

/// A namespace of a pool.
pub(crate) struct Context {
    handle: Handle,
    cluster: Cluster,
}

// SAFETY: librados allows the use of an I/O context by several threads; only the functions that
// change it, such as `ioctx_set_namespace`, are excluded, and they are called by `open` alone.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `ioctx_create` returned the handle, and nothing uses it after the end of this
        // value. The connection ends after it.
        unsafe { (self.cluster.functions.ioctx_destroy)(self.handle) }
    }
}

fn check(result: c_int) -> Answer<usize> {
    usize::try_from(result).map_err(|_| -result)
}

impl Context {
    /// Connects to a cluster.
    pub(crate) fn open(connection: &Connection<'_>) -> Result<Arc<Context>, OpenFailure> {
        let functions = functions().map_err(OpenFailure::Library)?;
        let step = |name, result| check(result).map_err(|errno| OpenFailure::Step(name, errno));
        let mut handle = ptr::null_mut();
        // SAFETY: the texts end with 0, and `handle` is valid for a write.
        let created =
            unsafe { (functions.create2)(&mut handle, c"ceph".as_ptr(), connection.client.as_ptr(), 0) };
        step("create a client", created)?;
        let cluster = Cluster { functions, handle };
        let configuration = connection.configuration.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the handle is valid; the path ends with 0, or is null, which selects the default.
        step("read the configuration", unsafe { (functions.conf_read_file)(handle, configuration) })?;
        for (option, value) in connection.options {
            // SAFETY: the handle is valid and not yet connected; the texts end with 0.
            let set = unsafe { (functions.conf_set)(handle, option.as_ptr(), value.as_ptr()) };
            step("set an option", set)?;
        }
        // SAFETY: the handle is valid and not yet connected.
        step("connect to the cluster", unsafe { (functions.connect)(handle) })?;
        let mut context = ptr::null_mut();
        // SAFETY: the handle is connected, the text ends with 0, `context` is valid for a write.
        let created = unsafe { (functions.ioctx_create)(handle, connection.pool.as_ptr(), &mut context) };
        step("open the pool", created)?;
        // SAFETY: the context is valid and not yet used; the text ends with 0.
        unsafe { (functions.ioctx_set_namespace)(context, connection.namespace.as_ptr()) };
        Ok(Arc::new(Context { handle: context, cluster }))
    }

    /// Begins a compound operation. The library copies the bytes before the call returns.
    pub(crate) fn start_write(self: &Arc<Context>, object: &CStr, write: &Write<'_>) -> Answer<Started> {
        let functions = self.cluster.functions;
        let names = write.steps().iter().map(|step| match step {
            Step::CompareAttribute { name, .. } | Step::SetAttribute { name, .. } => CString::new(*name),
            _ => Ok(CString::default()),
        });
        let names = names.collect::<Result<Vec<_>, _>>().map_err(|_| EINVAL)?;
        let started = Started::new(self)?;
        // SAFETY: the function has no requirements.
        let operation = unsafe { (functions.create_write_op)() };
        for (step, name) in write.steps().iter().zip(&names) {
            let name = name.as_ptr();
            // SAFETY: the operation is valid, names end with 0, and the addresses and lengths
            // belong to slices, which the functions copy.
            unsafe {
                match *step {
                    Step::CreateExclusive => (functions.write_op_create)(operation, EXCLUSIVE, ptr::null()),
                    Step::CompareAttribute { value, .. } => {
                        (functions.write_op_cmpxattr)(
                            operation,
                            name,
                            EQUAL,
                            value.as_ptr().cast(),
                            value.len(),
                        );
                    }
                    Step::SetAttribute { value, .. } => {
                        (functions.write_op_setxattr)(operation, name, value.as_ptr().cast(), value.len());
                    }
                    Step::WriteAt { offset, data } => {
                        (functions.write_op_write)(operation, data.as_ptr().cast(), data.len(), offset);
                    }
                    Step::WriteFull(data) => {
                        (functions.write_op_write_full)(operation, data.as_ptr().cast(), data.len());
                    }
                    Step::Append(data) => {
                        (functions.write_op_append)(operation, data.as_ptr().cast(), data.len());
                    }
                    Step::Remove => (functions.write_op_remove)(operation),
                }
            }
        }
        // SAFETY: all handles are valid, and the name ends with 0. The library keeps copies or
        // references of the operation, the completion and the name as long as it needs them. No
        // time is passed.
        let result = unsafe {
            (functions.aio_write_op_operate)(
                operation,
                self.handle,
                started.completion,
                object.as_ptr(),
                ptr::null_mut(),
                FULL_TRY,
            )
        };
        // SAFETY: the operation is valid, and is not used again.
        unsafe { (functions.release_write_op)(operation) };
        check(result)?;
        Ok(started)
    }

    /// Begins to read `length` bytes.
    pub(crate) fn start_read(
        self: &Arc<Context>,
        object: &CStr,
        offset: u64,
        length: usize,
    ) -> Answer<StartedRead> {
        let started = Started::new(self)?;
        let mut buffer = Vec::<u8>::with_capacity(length);
        // SAFETY: all handles are valid, and the name ends with 0. The buffer has capacity for
        // `length` bytes, and `StartedRead` keeps it until the operation has completed.
        let result = unsafe {
            (self.cluster.functions.aio_read)(
                self.handle,
                object.as_ptr(),
                started.completion,
                buffer.as_mut_ptr().cast(),
                length,
                offset,
            )
        };
        check(result)?;
        Ok(StartedRead { started, buffer, waited: false })
    }

    /// Returns the size of an object in bytes.
    pub(crate) fn size(&self, object: &CStr) -> Answer<u64> {
        let mut size = 0;
        // SAFETY: the context is valid, the name ends with 0, and `size` is valid for a write. The
        // library does not write the time to a null pointer.
        check(unsafe {
            (self.cluster.functions.stat)(self.handle, object.as_ptr(), &mut size, ptr::null_mut())
        })?;
        Ok(size)
    }

    /// Returns the value of an attribute of at most `length_max` bytes; ERANGE if it is longer.
    pub(crate) fn attribute(&self, object: &CStr, name: &CStr, length_max: usize) -> Answer<Vec<u8>> {
        let mut value = vec![0_u8; length_max];
        // SAFETY: the context is valid, the names end with 0, and the buffer is valid for writes of
        // its length.
        let result = unsafe {
            let buffer = value.as_mut_ptr().cast();
            (self.cluster.functions.getxattr)(
                self.handle,
                object.as_ptr(),
                name.as_ptr(),
                buffer,
                value.len(),
            )
        };
        let length = check(result)?;
        if length > length_max {
            return Err(ERANGE);
        }
        value.truncate(length);
        Ok(value)
    }

    /// Passes the names of all objects of the namespace to `visit`, until it returns false.
    pub(crate) fn list(&self, visit: &mut dyn FnMut(&[u8]) -> bool) -> Answer<()> {
        let functions = self.cluster.functions;
        let mut list = ptr::null_mut();
        // SAFETY: the context is valid, and `list` is valid for a write.
        check(unsafe { (functions.nobjects_list_open)(self.handle, &mut list) })?;
        let list = List { functions, handle: list };
        loop {
            let mut name = ptr::null();
            // SAFETY: the list is valid, `name` is valid for a write, and the other results are not
            // wanted, which null states.
            let result = unsafe {
                (functions.nobjects_list_next)(list.handle, &mut name, ptr::null_mut(), ptr::null_mut())
            };
            match check(result) {
                // SAFETY: after a success the name is a text that ends with 0 and is valid until
                // the next call; `visit` cannot keep it.
                Ok(_) if visit(unsafe { CStr::from_ptr(name) }.to_bytes()) => {}
                Ok(_) | Err(ENOENT) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// A list of objects, which is closed when the value is dropped.
struct List {
    functions: &'static Functions,
    handle: Handle,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `nobjects_list_open` returned the handle, which is not used again.
        unsafe { (self.functions.nobjects_list_close)(self.handle) }
    }
}

/// An operation that was started. Dropping it does not stop it.
pub(crate) struct Started {
    completion: Handle,
    context: Arc<Context>,
}

// SAFETY: librados allows the use of a completion by any thread.
unsafe impl Send for Started {}

impl Started {
    fn new(context: &Arc<Context>) -> Answer<Started> {
        let mut completion = ptr::null_mut();
        // SAFETY: no function is to be called at the completion, and `completion` is valid for a
        // write.
        check(unsafe {
            (context.cluster.functions.aio_create_completion2)(ptr::null_mut(), None, &mut completion)
        })?;
        Ok(Started { completion, context: Arc::clone(context) })
    }

    /// Waits until the operation has completed, and returns its result.
    pub(crate) fn wait(&self) -> Answer<usize> {
        let functions = self.context.cluster.functions;
        // SAFETY: the completion is valid until the end of this value.
        unsafe {
            (functions.aio_wait_for_complete)(self.completion);
            check((functions.aio_get_return_value)(self.completion))
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: the completion is valid and is not used again; the library keeps a reference of
        // its own until the operation has completed.
        unsafe { (self.context.cluster.functions.aio_release)(self.completion) }
    }
}

/// A read that was started. Dropping it waits until the operation has completed, because the
/// library writes to the buffer; the time limit of operations bounds the wait.
pub(crate) struct StartedRead {
    started: Started,
    buffer: Vec<u8>,
    waited: bool,
}

impl StartedRead {
    /// Waits until the operation has completed, and returns the bytes that were read.
    pub(crate) fn wait(mut self) -> Answer<Vec<u8>> {
        let result = self.started.wait();
        self.waited = true;
        let length = result?;
        if length > self.buffer.capacity() {
            return Err(ERANGE);
        }
        // SAFETY: the operation has completed with a success, and its result is the number of bytes
        // that the library wrote to the buffer, which is not larger than the capacity.
        unsafe { self.buffer.set_len(length) };
        Ok(std::mem::take(&mut self.buffer))
    }
}

impl Drop for StartedRead {
    fn drop(&mut self) {
        if !self.waited {
            let _result_is_not_wanted = self.started.wait();
        }
    }
}
