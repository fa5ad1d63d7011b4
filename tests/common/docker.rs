//! A container of `redis:7-alpine` by testcontainers.

use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};

pub struct Container {
    pub host: String,
    pub port: u16,
    _container: ContainerAsync<GenericImage>,
}

impl Container {
    /// Fails when no Docker engine answers, or it has no such image and cannot get it.
    pub async fn start() -> Result<Container, String> {
        Self::start_with(&[]).await
    }

    /// The same with arguments for the server.
    pub async fn start_with(args: &[String]) -> Result<Container, String> {
        let image = GenericImage::new("redis", "7-alpine")
            .with_exposed_port(6379.tcp())
            .with_wait_for(WaitFor::message_on_stdout("Ready to accept connections"));
        let started = if args.is_empty() { image.start().await } else { image.with_cmd(args).start().await };
        let container = started.map_err(|e| e.to_string())?;
        let host = container.get_host().await.map_err(|e| e.to_string())?.to_string();
        // The port is one of IPv4.
        let host = if host == "localhost" { "127.0.0.1".to_owned() } else { host };
        let port = container.get_host_port_ipv4(6379.tcp()).await.map_err(|e| e.to_string())?;
        Ok(Container { host, port, _container: container })
    }

    pub fn url(&self) -> String {
        format!("redis://{}:{}", self.host, self.port)
    }
}
