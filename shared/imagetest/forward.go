package imagetest

import (
	"io"
	"net"
	"strings"
	"sync"
)

// Forward is a listener in a container's network that forwards connections to a server on this machine.
type Forward struct {
	in     *Running
	at, to string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

// Up starts listening. It does nothing if the Forward listens already.
func (f *Forward) Up() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		return nil
	}
	return inNetwork(f.in.program.Pid, func() (err error) {
		if f.listener, err = net.Listen("tcp", f.at); err != nil {
			f.listener = nil
			return err
		}
		f.open = map[net.Conn]bool{}
		go f.serve(f.listener)
		return nil
	})
}

// Down closes the listener and all connections, so that new connections are refused.
func (f *Forward) Down() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener == nil {
		return
	}
	f.listener.Close()
	f.listener = nil
	for conn := range f.open {
		conn.Close()
	}
}

func (f *Forward) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go f.connect(l, conn)
	}
}

func (f *Forward) connect(l net.Listener, conn net.Conn) {
	defer conn.Close()
	network := "tcp"
	if strings.HasPrefix(f.to, "/") {
		network = "unix"
	}
	server, err := net.Dial(network, f.to)
	if err != nil {
		return
	}
	defer server.Close()
	f.mu.Lock()
	up := f.listener == l
	if up {
		f.open[conn] = true
	}
	f.mu.Unlock()
	if !up {
		return
	}
	go func() { io.Copy(server, conn); server.Close() }()
	io.Copy(conn, server)
	f.mu.Lock()
	delete(f.open, conn)
	f.mu.Unlock()
}
