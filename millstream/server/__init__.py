"""HTTP, WebSocket and WebRTC for many clients; the page is in web/."""
