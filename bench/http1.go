//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// httpClient is one HTTP/1.1 connection with at most one request in flight. Like client, its counterpart for gRPC, it
// does little and costs little: net/http's client would take as much CPU time as the daemon, on the same cores.
//
// It is not a general client: it understands only Content-Length and whole chunked answers, and it gives up where
// another client would reconnect. One goroutine owns it.
type httpClient struct {
	socket
	in    []byte // of the answer, which is not complete
	busy  bool
	begun int64 // when the request in flight was due, ns on the load's clock
}

// receive reads the bytes that have arrived. done reports that the answer is complete; body is valid until the next
// call.
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
		status, body, size, err = parse(c.in)
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

// lengthField is as Go's server writes it.
var endOfHead, lengthField = []byte("\r\n\r\n"), []byte("\r\nContent-Length: ")

// parse parses one answer. size is its length, 0 while it is not complete.
func parse(in []byte) (status int, body []byte, size int, err error) {
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
	if _, length, ok := bytes.Cut(head, lengthField); ok {
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
	return parseOther(in)
}

// parseOther is parse for a chunked answer, or an answer of a server other than Go's.
func parseOther(in []byte) (status int, body []byte, size int, err error) {
	from := bytes.NewReader(in)
	buffered := bufio.NewReader(from)
	answer, err := http.ReadResponse(buffered, nil)
	if err != nil || answer.ContentLength < 0 && len(answer.TransferEncoding) == 0 {
		return 0, nil, 0, fmt.Errorf("an answer without end: %q (%v)", in, err)
	}
	if body, err = io.ReadAll(answer.Body); err != nil {
		if strings.Contains(err.Error(), "EOF") { // the rest has not arrived
			err = nil
		}
		return 0, nil, 0, err
	}
	return answer.StatusCode, body, len(in) - from.Len() - buffered.Buffered(), nil
}
