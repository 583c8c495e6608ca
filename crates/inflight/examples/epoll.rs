//! A loop over epoll of one's own, without a runtime: reads are polled beside a socket, and their
//! waker writes to an eventfd that the loop watches. A client asks for blocks by their number.
//!
//! ```text
//! cargo run --example epoll -p inflight
//! ```

use std::error::Error;
use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use inflight::AlignedBuf;
use inflight::fs::{Direct, File, OpenOptions};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::retry_on_intr;

const BLOCK: usize = 4096;
const BLOCKS: u8 = 32;
const SOCKET: u64 = 0;
const BELL: u64 = 1;

/// Wakes the loop: an eventfd that is written to can be read from.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // It fails only if it has rung 2^64 times since it was answered.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("blocks");
    let blocks: Vec<u8> = (0..BLOCKS).flat_map(|number| [number; BLOCK]).collect();
    std::fs::write(&path, blocks)?;
    let options = OpenOptions::new().read(true).direct(Direct::Auto);
    let file = options.open(&path)?;

    let (client, server) = UnixStream::pair()?;
    let client = thread::spawn(move || ask(client));
    serve(&file, server)?;
    let served = client.join().expect("the client does not panic")?;
    println!("{served} blocks were served");
    Ok(())
}

/// Answers each number with the first byte of that block, until the client is gone. It waits for a
/// client that does not take its answers.
fn serve(file: &File, mut socket: UnixStream) -> Result<(), Box<dyn Error>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = Arc::new(Bell(eventfd(0, flags)?));
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (readable, data) = (epoll::EventFlags::IN, epoll::EventData::new_u64);
    epoll::add(&watch, &socket, data(SOCKET), readable)?;
    epoll::add(&watch, &bell.0, data(BELL), readable)?;

    // With many in flight, give each a waker that also notes which one is to be polled.
    let waker = Waker::from(Arc::clone(&bell));
    let mut cx = Context::from_waker(&waker);
    let (mut reads, mut is_open) = (Vec::new(), true);
    let mut events = Vec::with_capacity(2);
    while is_open || !reads.is_empty() {
        // A signal may end it without an event, and so may what the kernel does for a ring.
        retry_on_intr(|| epoll::wait(&watch, spare_capacity(&mut events), None))?;
        for event in events.drain(..) {
            if event.data.u64() == BELL {
                // Before the reads are polled, so that none is missed that is ready after that.
                rustix::io::read(&bell.0, &mut [0; 8])?;
                continue;
            }
            let mut asked = [0; 16];
            match socket.read(&mut asked) {
                Ok(0) => {
                    epoll::delete(&watch, &socket)?;
                    is_open = false;
                }
                Ok(len) => {
                    for &number in &asked[..len] {
                        let at = u64::from(number) * BLOCK as u64;
                        let read = file.read_exact_at(file.aligned_buf(BLOCK)?, at);
                        reads.push(read.into_future());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        // What has just been asked for begins when it is polled for the first time.
        let mut answers: Vec<AlignedBuf> = Vec::new();
        let mut failed = Ok(());
        reads.retain_mut(|read| match Pin::new(read).poll(&mut cx) {
            Poll::Pending => true,
            Poll::Ready((Ok(_), block)) => {
                answers.push(block);
                false
            }
            Poll::Ready((Err(error), _)) => {
                failed = Err(error);
                false
            }
        });
        failed?;
        for block in answers {
            socket.write_all(&block[..1])?;
        }
    }
    Ok(())
}

/// Asks for every block, and counts the answers. They come in any order.
fn ask(mut socket: UnixStream) -> std::io::Result<usize> {
    let numbers: Vec<u8> = (0..BLOCKS).collect();
    socket.write_all(&numbers)?;
    socket.shutdown(std::net::Shutdown::Write)?;
    let mut answers = Vec::new();
    socket.read_to_end(&mut answers)?;
    answers.sort_unstable();
    assert_eq!(answers, numbers);
    Ok(answers.len())
}
