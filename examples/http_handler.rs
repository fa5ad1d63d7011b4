//! Locks in an HTTP handler: why each request wants an owner of its own.
//!
//! Without a scope, the owner is the current task. A server usually runs one task for each *connection*, and a keep-alive
//! connection carries many requests: they would all be one owner. That shows as soon as a guard outlives its request, as here,
//! where `POST /orders/42` answers `202 Accepted` at once and works on in the background with the guard. The next request on
//! the same connection would re-enter the lock instead of finding it taken. (With HTTP/2 it takes less: requests of one
//! connection may run beside each other in one task.) `Owner::new().scope(...)` around the handler makes every request a
//! stranger to the others; inside the request, calls still nest.
//!
//! The server is hyper's, which runs a connection in the task that serves it. In axum, which stands on it, the scope goes to
//! the same place: around the call of the service, in a middleware.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example http_handler             # shows the difference, and ends
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example http_handler -- --serve  # serves: curl -X POST 127.0.0.1:8080/orders/42
//! ```

use std::error::Error;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use redisson_lock::{LockClient, Owner};
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
        let stream = TokioIo::new(TcpStream::connect(address).await?);
        let (mut connection, driver) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(driver);
        let path = format!("/orders/{scoped}");
        let first = request(&mut connection, &path).await?;
        let second = request(&mut connection, &path).await?;
        println!("{}", if scoped { "an owner for each request:" } else { "the connection's task as the owner:" });
        println!("    first request:  {first}\n    second request: {second}");
        assert_eq!(first, StatusCode::ACCEPTED);
        assert_eq!(second, if scoped { StatusCode::CONFLICT } else { StatusCode::ACCEPTED });
        server.abort();
    }
    Ok(())
}

async fn serve(listener: TcpListener, client: LockClient, scoped: bool) -> Outcome<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let client = client.clone();
        // One task for the connection; its requests are handled in it, one after the other.
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let client = client.clone();
                async move {
                    let path = request.uri().path();
                    let status = if scoped {
                        Owner::new().scope(handle(&client, path)).await
                    } else {
                        handle(&client, path).await // the mistake
                    };
                    Response::builder().status(status).body(Empty::<Bytes>::new())
                }
            });
            if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
                eprintln!("connection: {error}");
            }
        });
    }
}

/// Starts work on an order, unless somebody is at it. The guard goes with the work, and the lock ends with it.
async fn handle(client: &LockClient, path: &str) -> StatusCode {
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
            StatusCode::ACCEPTED
        }
        Ok(None) => StatusCode::CONFLICT,
        Err(error) => {
            eprintln!("order: {error}");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

async fn request(connection: &mut SendRequest<Empty<Bytes>>, path: &str) -> Outcome<StatusCode> {
    let request = Request::post(path).header("host", "localhost").body(Empty::new())?;
    connection.ready().await?;
    Ok(connection.send_request(request).await?.status())
}
