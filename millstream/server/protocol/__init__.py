"""The native protocol: WebSocket, WebRTC, REST."""
