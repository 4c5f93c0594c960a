//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// httpClient is one HTTP/1.1 connection with at most one request in flight. Like client, its sister for
// gRPC, it does little and costs little: net/http's would take as much CPU time as the daemon, on the
// same cores.
//
// It is not a general client: it understands Content-Length and whole chunked answers, nothing else, and
// it gives up where another would reconnect. One goroutine owns it.
type httpClient struct {
	socket
	in    []byte // of the answer, not yet complete
	body  []byte // scratch for chunked answers
	busy  bool
	begun int64 // when the request in flight was due, ns on the load's clock
}

// receive reads what has come. done reports that the answer is complete; body is valid until the next call.
func (c *httpClient) receive() (status int, body []byte, done bool, err error) {
	for {
		c.in = append(c.in, make([]byte, 4096)...) // no allocation once the buffer has grown
		at := len(c.in) - 4096
		n, err := c.read(c.in[at:])
		c.in = c.in[:at+n]
		if n == 0 {
			return 0, nil, false, err
		}
		if !c.busy {
			return 0, nil, false, fmt.Errorf("an answer that nobody asked for: %q", c.in)
		}
		var size int
		status, body, size, err = c.parse(c.in)
		if err != nil {
			return 0, nil, false, err
		}
		if size == 0 {
			continue
		}
		if size != len(c.in) {
			return 0, nil, false, fmt.Errorf("%d bytes follow the answer", len(c.in)-size)
		}
		c.in, c.busy = c.in[:0], false
		return status, body, true, nil
	}
}

var (
	endOfHead   = []byte("\r\n\r\n")
	lengthField = newHeadField("\r\nContent-Length: ")
	chunkField  = newHeadField("\r\nTransfer-Encoding: chunked\r\n")
)

// headField is a header field as Go's server writes it and, in small letters, as Envoy does.
type headField [2][]byte

func newHeadField(text string) headField {
	return headField{[]byte(text), []byte(strings.ToLower(text))}
}

// after returns what follows the field.
func (f headField) after(head []byte) (rest []byte, found bool) {
	for _, text := range f {
		if _, rest, found = bytes.Cut(head, text); found {
			return rest, true
		}
	}
	return nil, false
}

// parse reads one answer. size is how long it is, 0 while something of it is missing.
func (c *httpClient) parse(in []byte) (status int, body []byte, size int, err error) {
	end := bytes.Index(in, endOfHead)
	if end < 0 {
		return 0, nil, 0, nil
	}
	head, rest := in[:end+2], in[end+4:]
	if len(head) < 14 || !bytes.HasPrefix(head, []byte("HTTP/1.1 ")) {
		return 0, nil, 0, fmt.Errorf("no HTTP/1.1 answer: %q", head)
	}
	if status, err = strconv.Atoi(string(head[9:12])); err != nil {
		return 0, nil, 0, fmt.Errorf("status of %q: %w", head, err)
	}
	if status == 204 || status == 304 {
		return status, nil, end + 4, nil
	}
	if length, ok := lengthField.after(head); ok {
		text, _, _ := bytes.Cut(length, []byte("\r\n"))
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 {
			return 0, nil, 0, fmt.Errorf("length of %q", head)
		}
		if len(rest) < n {
			return 0, nil, 0, nil
		}
		return status, rest[:n], end + 4 + n, nil
	}
	if _, ok := chunkField.after(head); !ok {
		return 0, nil, 0, fmt.Errorf("an answer without end: %q", head)
	}
	size, err = c.dechunk(rest)
	if err != nil || size == 0 {
		return 0, nil, 0, err
	}
	return status, c.body, end + 4 + size, nil
}

// dechunk gathers a chunked body in c.body and returns its length on the wire, 0 while it isn't complete.
func (c *httpClient) dechunk(in []byte) (int, error) {
	c.body = c.body[:0]
	for at := 0; ; {
		line, rest, ok := bytes.Cut(in[at:], []byte("\r\n"))
		if !ok {
			return 0, nil
		}
		n, err := strconv.ParseUint(string(line), 16, 24)
		if err != nil {
			return 0, fmt.Errorf("chunk: %w", err)
		}
		if len(rest) < int(n)+2 {
			return 0, nil
		}
		if rest[n] != '\r' || rest[n+1] != '\n' {
			return 0, errors.New("a chunk without end")
		}
		c.body = append(c.body, rest[:n]...)
		at += len(line) + 2 + int(n) + 2
		if n == 0 {
			return at, nil
		}
	}
}
