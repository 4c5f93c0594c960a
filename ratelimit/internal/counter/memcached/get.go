package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

const (
	// maxLine bounds the length of a line of an answer. The longest valid line has a key of maxKey bytes and three
	// numbers.
	maxLine = 512
	// maxNumber is the longest value that is parsed as a number. It has 20 digits at most, but when a number becomes
	// shorter, memcached keeps the value's length and fills it with spaces.
	maxNumber = 1 << 10
	// maxValue is the longest value that is read and dropped, if another program has stored it under a counter's key.
	// It is the longest that memcached stores, unless memcached's option -I says otherwise.
	maxValue = 1 << 20
)

// These values stand in the place of a total for keys that have none.
const (
	unseen   = -2 // not yet found in the answer
	noNumber = -1 // the value is not a counter's
)

// errNotAnAnswer means that the peer speaks another protocol, has refused a valid command, or answers another command
// than the last.
var errNotAnAnswer = errors.New("not memcached's answer to a lookup")

// get looks the keys up in the node by one command, and sets the total of each: 0 for a key that the node does not
// have. No key may occur twice. found is how many keys the node has. After an error, it is unknown which bytes belong
// to which answer, so the connection must not be used any longer.
//
// The command is gets, which envoyproxy/ratelimit sends too; the version number in its answer is not used.
func (l *connection) get(keys []string, totals []int64) (found int, err error) {
	l.out = append(l.out, "gets"...)
	for _, key := range keys {
		l.out = append(append(l.out, ' '), key...)
	}
	l.out = append(l.out, "\r\n"...)
	if err := l.flush(); err != nil {
		return 0, err
	}
	return readTotals(l.in, keys, totals)
}

// version requests the node's version. Every node that works answers the request.
func (l *connection) version() error {
	l.out = append(l.out, "version\r\n"...)
	if err := l.flush(); err != nil {
		return err
	}
	line, err := readLine(l.in)
	if err == nil && !bytes.HasPrefix(line, []byte("VERSION")) {
		err = fmt.Errorf("memcached: %.200q, want VERSION", line)
	}
	return err
}

// readTotals reads the answer to the command of get: for each key that the node has, a line VALUE <key> <flags> <bytes>
// [<version>] followed by the value and CRLF; at the end, the line END. It sets the totals of the other keys to 0.
func readTotals(in *bufio.Reader, keys []string, totals []int64) (found int, err error) {
	for i := range totals {
		totals[i] = unseen
	}
	for next := 0; ; found++ {
		line, err := readLine(in)
		if err != nil {
			return 0, err
		}
		if string(line) == "END\r\n" {
			break
		}
		key, size, err := parseValueLine(line)
		if err != nil {
			return 0, err
		}
		at := indexFrom(keys, next, key)
		if at < 0 {
			return 0, fmt.Errorf("%w: key %.200q was not requested", errNotAnAnswer, key)
		}
		if totals[at] != unseen {
			return 0, fmt.Errorf("%w: key %.200q has two values", errNotAnAnswer, key)
		}
		if totals[at], err = readTotal(in, size); err != nil {
			return 0, err
		}
		next = at + 1
	}
	for i, total := range totals {
		if total == unseen {
			totals[i] = 0
		}
	}
	return found, nil
}

// readLine reads a line, including its line end. The line is valid until the next read.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(line) > maxLine {
		return nil, fmt.Errorf("%w: %.200q…, a line of more than %d bytes", errNotAnAnswer, line, maxLine)
	}
	return line, err
}

// parseValueLine parses the line VALUE …, which comes before a value. size is the length of the value in bytes.
func parseValueLine(line []byte) (key []byte, size int, err error) {
	text, ended := bytes.CutSuffix(line, []byte("\r\n"))
	if !ended {
		return nil, 0, fmt.Errorf("%w: %.200q does not end in CRLF", errNotAnAnswer, line)
	}
	rest, isValue := bytes.CutPrefix(text, []byte("VALUE "))
	if !isValue {
		return nil, 0, fmt.Errorf("%w: %.200q, want VALUE or END", errNotAnAnswer, text)
	}
	key, rest, _ = bytes.Cut(rest, []byte(" "))
	flags, rest, _ := bytes.Cut(rest, []byte(" "))
	bytesText, version, versioned := bytes.Cut(rest, []byte(" "))
	if _, err := strconv.ParseUint(string(flags), 10, 32); err != nil {
		return nil, 0, fmt.Errorf("%w: %.200q: flags %.20q: want a number of at most 32 bits",
			errNotAnAnswer, text, flags)
	}
	n, err := strconv.ParseUint(string(bytesText), 10, 64)
	if err != nil || n > maxValue {
		return nil, 0, fmt.Errorf("%w: %.200q: length %.20q: want a number of at most %d",
			errNotAnAnswer, text, bytesText, maxValue)
	}
	if versioned {
		if _, err := strconv.ParseUint(string(version), 10, 64); err != nil {
			return nil, 0, fmt.Errorf("%w: %.200q: version %.20q: want a number of at most 64 bits",
				errNotAnAnswer, text, version)
		}
	}
	return key, int(n), nil
}

// indexFrom returns the index of key in keys, or -1. It searches from index next first, since memcached answers in the
// order of the keys, and then the whole list, since a proxy may answer in another order.
func indexFrom(keys []string, next int, key []byte) int {
	is := func(k string) bool { return k == string(key) }
	if i := slices.IndexFunc(keys[next:], is); i >= 0 {
		return next + i
	}
	return slices.IndexFunc(keys[:next], is)
}

// readTotal reads a value of size bytes and the CRLF after it. It returns noNumber if the value is not a counter's.
func readTotal(in *bufio.Reader, size int) (total int64, err error) {
	total = noNumber
	if size > maxNumber {
		if _, err := in.Discard(size); err != nil {
			return 0, cutShort(err)
		}
		size = 0
	}
	value, err := in.Peek(size + len("\r\n"))
	if err != nil {
		return 0, cutShort(err)
	}
	if end := value[size:]; string(end) != "\r\n" {
		return 0, fmt.Errorf("%w: a value is followed by %q, want CRLF", errNotAnAnswer, end)
	}
	if n, err := parseTotal(value[:size]); err == nil {
		total = n
	}
	_, err = in.Discard(len(value))
	return total, err
}

// cutShort returns err or, for the end of the connection, an error that says that an answer was cut off.
func cutShort(err error) error {
	if err == io.EOF {
		return fmt.Errorf("the answer ends within a value: %w", io.ErrUnexpectedEOF)
	}
	return err
}
