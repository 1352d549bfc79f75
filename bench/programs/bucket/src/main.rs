//! Writes and reads objects of a bucket with a plain client on one thread: the baseline of the bench `far --tier s3`.
//!
//! Its arguments are those of `dalsegno-bench-far-raw`, with the URL of a folder in a bucket as `--dir`.
//!
//! `write`: so many tasks put whole objects. `read`: so many tasks take the next range of the objects in order, and copy its
//! bytes to a buffer as they arrive, as every user of a cache must. `remove`: removes all objects of the folder.
//! Every byte count is checked. Prints one JSON object:
//! bytes, seconds, CPU seconds, requests. The environment has the endpoint and the credentials.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload};

struct Args {
    mode: String,
    bucket: String,
    prefix: String,
    files: usize,
    file_bytes: usize,
    request_bytes: usize,
    workers: usize,
}

impl Args {
    fn parse() -> Self {
        let text = |name: &str| {
            let given = std::env::args().find_map(|one| one.strip_prefix(name).map(str::to_owned));
            given.unwrap_or_else(|| panic!("{name}VALUE is missing"))
        };
        let number = |name: &str| text(name).parse().unwrap_or_else(|_| panic!("{name}NUMBER"));
        let url = text("--dir=");
        let (bucket, prefix) = url
            .strip_prefix("s3://")
            .and_then(|rest| rest.split_once('/'))
            .expect("--dir=s3://BUCKET/PREFIX");
        Self {
            mode: text("--mode="),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            files: number("--files="),
            file_bytes: number("--file-bytes="),
            request_bytes: number("--request-bytes="),
            workers: number("--workers="),
        }
    }

    fn path(&self, number: usize) -> Path {
        Path::from(format!("{}/{number:08}.raw", self.prefix))
    }
}

type Failure = Box<dyn std::error::Error>;

/// Takes numbers until all are taken.
struct Next {
    next: Cell<usize>,
    end: usize,
}

impl Next {
    fn take(&self) -> Option<usize> {
        let number = self.next.get();
        self.next.set(number + 1);
        (number < self.end).then_some(number)
    }
}

async fn write(
    args: &Args,
    store: &dyn ObjectStore,
    next: &Next,
    body: &Bytes,
) -> Result<(), Failure> {
    while let Some(number) = next.take() {
        store.put(&args.path(number), PutPayload::from(body.clone())).await?;
    }
    Ok(())
}

async fn read(args: &Args, store: &dyn ObjectStore, next: &Next) -> Result<(), Failure> {
    let of_object = args.file_bytes.div_ceil(args.request_bytes);
    let mut buffer = vec![0_u8; args.request_bytes];
    while let Some(request) = next.take() {
        let (number, at) = (request / of_object, request % of_object * args.request_bytes);
        let count = args.request_bytes.min(args.file_bytes - at);
        let range = GetRange::Bounded(at as u64..(at + count) as u64);
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let mut body = store.get_opts(&args.path(number), options).await?.into_stream();
        let mut filled = 0;
        while let Some(piece) = body.next().await {
            let piece = piece?;
            buffer[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        assert_eq!(filled, count, "bytes of a range");
    }
    Ok(())
}

/// Removes all objects of the folder.
async fn remove(args: &Args, store: &dyn ObjectStore) -> Result<(), Failure> {
    let mut listed = store.list(Some(&Path::from(args.prefix.as_str())));
    while let Some(found) = listed.next().await {
        store.delete(&found?.location).await?;
    }
    Ok(())
}

fn cpu_s() -> f64 {
    // SAFETY: the structure is plain numbers, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn main() -> Result<(), Failure> {
    // An error means that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args = Rc::new(Args::parse());
    let store: Arc<dyn ObjectStore> = Arc::new(
        AmazonS3Builder::from_env().with_bucket_name(&args.bucket).with_allow_http(true).build()?,
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let is_write = match args.mode.as_str() {
        "write" => true,
        "read" => false,
        "remove" => return runtime.block_on(remove(&args, &*store)),
        other => panic!("--mode={other}: expected write, read or remove"),
    };
    let requests = if is_write {
        args.files
    } else {
        args.files * args.file_bytes.div_ceil(args.request_bytes)
    };
    let next = Rc::new(Next { next: Cell::new(0), end: requests });
    let body: Bytes = (0..args.file_bytes).map(|at| (at * 31) as u8).collect::<Vec<u8>>().into();
    let tasks = tokio::task::LocalSet::new();
    let (cpu, start) = (cpu_s(), Instant::now());
    let done = tasks.block_on(&runtime, async {
        let workers: Vec<_> = (0..args.workers)
            .map(|_| {
                let (args, store, next) = (Rc::clone(&args), Arc::clone(&store), Rc::clone(&next));
                let body = body.clone();
                tokio::task::spawn_local(async move {
                    let work = async {
                        if is_write {
                            write(&args, &*store, &next, &body).await
                        } else {
                            read(&args, &*store, &next).await
                        }
                    };
                    work.await.map_err(|error| error.to_string())
                })
            })
            .collect();
        for worker in workers {
            worker.await.map_err(|error| error.to_string())??;
        }
        Ok::<(), String>(())
    });
    done?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
    let bytes = args.files * args.file_bytes;
    println!(
        "{}",
        serde_json::json!({ "bytes": bytes, "s": seconds, "cpu_s": cpu, "requests": requests })
    );
    Ok(())
}
