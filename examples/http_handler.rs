//! Locks in an HTTP handler: why each request wants an owner of its own.
//!
//! Without a scope, the owner is the current task. A server usually runs one task for each *connection*, and a keep-alive
//! connection carries many requests: they would all be one owner. That shows as soon as a guard outlives its request, as here,
//! where `POST /orders/42` answers `202 Accepted` at once and works on in the background with the guard. The next request on
//! the same connection would re-enter the lock instead of finding it taken. (With HTTP/2 it takes less: requests of one
//! connection may run beside each other in one task.) `Owner::new().scope(...)` around the handler makes every request a
//! stranger to the others; inside the request, calls still nest.
//!
//! The server is plain tokio, with as little HTTP as will do, so that nothing stands between the connection's task and the
//! lock. In hyper or axum the scope goes to the same place: around the call of the service, in a middleware.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example http_handler             # shows the difference, and ends
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example http_handler -- --serve  # serves: curl -X POST 127.0.0.1:8080/orders/42
//! ```

use std::error::Error;
use std::time::Duration;

use redisson_lock::{LockClient, Owner};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    let client = LockClient::builder().url(&url).label("http").connect().await?;

    if std::env::args().any(|a| a == "--serve") {
        let listener = TcpListener::bind("127.0.0.1:8080").await?;
        println!("serving on http://{}", listener.local_addr()?);
        return serve(listener, client, true).await;
    }

    for scoped in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(serve(listener, client.clone(), scoped));

        // Two requests for one order, on one keep-alive connection.
        let mut connection = BufReader::new(TcpStream::connect(address).await?);
        let path = format!("/orders/{scoped}");
        let first = request(&mut connection, &path).await?;
        let second = request(&mut connection, &path).await?;
        println!("{}", if scoped { "an owner for each request:" } else { "the connection's task as the owner:" });
        println!("    first request:  {first}\n    second request: {second}");
        assert_eq!(first, "202 Accepted");
        assert_eq!(second, if scoped { "409 Conflict" } else { "202 Accepted" });
        server.abort();
    }
    Ok(())
}

async fn serve(listener: TcpListener, client: LockClient, scoped: bool) -> Outcome<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let client = client.clone();
        tokio::spawn(async move {
            if let Err(error) = connection(stream, client, scoped).await {
                eprintln!("connection: {error}");
            }
        });
    }
}

/// One task, one connection, one request after the other.
async fn connection(stream: TcpStream, client: LockClient, scoped: bool) -> Outcome<()> {
    let mut stream = BufReader::new(stream);
    while let Some(path) = read_head(&mut stream).await?.and_then(|line| line.split(' ').nth(1).map(str::to_owned)) {
        let status = if scoped {
            Owner::new().scope(handle(&client, &path)).await
        } else {
            handle(&client, &path).await // the mistake
        };
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.get_mut().write_all(response.as_bytes()).await?;
    }
    Ok(())
}

/// Starts work on an order, unless somebody is at it. The guard goes with the work, and the lock ends with it.
async fn handle(client: &LockClient, path: &str) -> &'static str {
    match client.get_lock(format!("example:http:{path}")).try_lock().await {
        Ok(Some(guard)) => {
            tokio::spawn(async move {
                // Dropped when the lock is lost; see the example `lost_lock`.
                let work = guard.run(tokio::time::sleep(Duration::from_secs(1))).await;
                if let Err(error) = work {
                    return eprintln!("order: {error}");
                }
                if let Err(error) = guard.unlock().await {
                    eprintln!("order: {error}");
                }
            });
            "202 Accepted"
        }
        Ok(None) => "409 Conflict",
        Err(error) => {
            eprintln!("order: {error}");
            "503 Service Unavailable"
        }
    }
}

/// The first line of a request or response; the rest of the head and the body are read and dropped.
async fn read_head(stream: &mut BufReader<TcpStream>) -> Outcome<Option<String>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 || line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    tokio::io::copy(&mut stream.take(length), &mut tokio::io::sink()).await?;
    Ok(Some(first.trim_end().to_owned()))
}

async fn request(connection: &mut BufReader<TcpStream>, path: &str) -> Outcome<String> {
    let text = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    connection.get_mut().write_all(text.as_bytes()).await?;
    let line = read_head(connection).await?.ok_or("the server hung up")?;
    Ok(line.split_once(' ').map(|(_, status)| status.to_owned()).unwrap_or(line))
}
