//! A Mooncake cluster for the tests of tiers: a model in memory, and a real one through a Python process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use dalsegno_core::{Clock, FarOptions};
use dalsegno_far::Tier;
use dalsegno_far_mooncake::{Client, ClientError, Connect, MooncakeLocation, MooncakeTier};
use dalsegno_io::Memory;
use serde_json::{Value, json};

const NOT_FOUND: i64 = -704;
const INVALID: i64 = -600;

/// A location in a cluster whose other objects are in `catalogs`.
pub fn tier(
    prefix: &str,
    master: &str,
    catalogs: Arc<dyn Tier>,
    connect: Arc<Connect>,
    clock: &Arc<dyn Clock>,
) -> Arc<dyn Tier> {
    let options = FarOptions { catalogs: Some("elsewhere".to_owned()), ..FarOptions::default() };
    let url = format!("mooncake://{master}/{prefix}");
    let location = MooncakeLocation::parse(&url, &options).unwrap();
    Arc::new(MooncakeTier::open(&location, catalogs, connect, 4, clock).unwrap())
}

/// The objects of a cluster that is a map. Clones are clients of the same cluster.
#[derive(Clone, Default)]
pub struct ModelCluster(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl ModelCluster {
    pub fn connect(&self) -> Arc<Connect> {
        let cluster = self.clone();
        Arc::new(move |_| Ok(Arc::new(cluster.clone()) as Arc<dyn Client>))
    }

    /// Loses objects, as a cluster does without a word.
    pub fn lose(&self, is_lost: impl Fn(&str) -> bool) {
        self.0.lock().unwrap().retain(|key, _| !is_lost(key));
    }

    pub fn keys(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

impl Client for ModelCluster {
    fn put(&self, key: &str, bytes: &[Memory]) -> Result<(), ClientError> {
        let whole = || bytes.iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
        self.0.lock().unwrap().entry(key.to_owned()).or_insert_with(whole);
        Ok(())
    }

    fn get(&self, key: &str, offset: u64, memory: &mut [Memory]) -> Result<(), ClientError> {
        let objects = self.0.lock().unwrap();
        let object = objects.get(key).ok_or(ClientError::Code(NOT_FOUND))?;
        let mut at = usize::try_from(offset).unwrap();
        for piece in memory {
            let range = at..at + piece.len();
            let from = object.get(range).ok_or(ClientError::Code(INVALID))?;
            piece.as_mut_slice().copy_from_slice(from);
            at += piece.len();
        }
        Ok(())
    }

    fn sizes(&self, keys: &[String]) -> Result<Vec<Option<u64>>, ClientError> {
        let objects = self.0.lock().unwrap();
        Ok(keys.iter().map(|key| objects.get(key).map(|object| object.len() as u64)).collect())
    }

    fn remove(&self, key: &str) -> Result<(), ClientError> {
        let removed = self.0.lock().unwrap().remove(key);
        removed.map(drop).ok_or(ClientError::Code(NOT_FOUND))
    }
}

/// Mooncake's own client, in a Python process: `tests/far/mooncake_bridge.py`.
pub struct Bridge(Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Bridge {
    /// Starts one with the words of a command, the last of which is the address of the master.
    pub fn connect(command: &str) -> Arc<Connect> {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        Arc::new(move |_| {
            let mut child = Command::new(&words[0])
                .args(&words[1..])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| ClientError::NoClient(error.to_string()))?;
            let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            Ok(Arc::new(Self(Mutex::new((child, stdin, BufReader::new(stdout))))))
        })
    }

    /// Makes a call; returns its answer and the bytes of a get that succeeded.
    fn call(
        &self,
        request: &Value,
        bytes: &[Memory],
        wanted: usize,
    ) -> Result<(Value, Vec<u8>), ClientError> {
        let mut process = self.0.lock().unwrap();
        let (_, stdin, stdout) = &mut *process;
        let ended = |error: std::io::Error| ClientError::NoClient(error.to_string());
        let mut line = format!("{request}\n").into_bytes();
        for piece in bytes {
            line.extend_from_slice(piece.as_slice());
        }
        stdin.write_all(&line).and_then(|()| stdin.flush()).map_err(ended)?;
        let mut text = String::new();
        stdout.read_line(&mut text).map_err(ended)?;
        let answer: Value = serde_json::from_str(&text)
            .map_err(|error| ClientError::NoClient(error.to_string()))?;
        match answer["code"].as_i64().unwrap() {
            0 => {
                let mut read = vec![0; wanted];
                stdout.read_exact(&mut read).map_err(ended)?;
                Ok((answer, read))
            }
            code => Err(ClientError::Code(code)),
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let (child, ..) = self.0.get_mut().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn sizes_of(memory: &[Memory]) -> Vec<usize> {
    memory.iter().map(Memory::len).collect()
}

impl Client for Bridge {
    fn put(&self, key: &str, bytes: &[Memory]) -> Result<(), ClientError> {
        let request = json!({"call": "put", "key": key, "sizes": sizes_of(bytes)});
        self.call(&request, bytes, 0).map(drop)
    }

    fn get(&self, key: &str, offset: u64, memory: &mut [Memory]) -> Result<(), ClientError> {
        let sizes = sizes_of(memory);
        let request = json!({"call": "get", "key": key, "offset": offset, "sizes": sizes});
        let (_, read) = self.call(&request, &[], sizes.iter().sum())?;
        let mut rest = read.as_slice();
        for piece in memory {
            let (now, later) = rest.split_at(piece.len());
            piece.as_mut_slice().copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    fn sizes(&self, keys: &[String]) -> Result<Vec<Option<u64>>, ClientError> {
        let (answer, _) = self.call(&json!({"call": "sizes", "keys": keys}), &[], 0)?;
        let sizes = answer["sizes"].as_array().unwrap().iter();
        Ok(sizes.map(|size| u64::try_from(size.as_i64().unwrap()).ok()).collect())
    }

    fn remove(&self, key: &str) -> Result<(), ClientError> {
        self.call(&json!({"call": "remove", "key": key}), &[], 0).map(drop)
    }
}
