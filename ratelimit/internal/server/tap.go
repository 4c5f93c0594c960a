package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/rls"
)

const (
	// tapPatience is how long a client of /tap may take to read before its connection is closed.
	tapPatience = 5 * time.Second
	// tapReport is how often the number of dropped events is reported to the client.
	tapReport = time.Second
)

// tap serves the page /tap, which streams decisions to the client as lines of JSON.
func (d *debugPort) tap(w http.ResponseWriter, r *http.Request) {
	filter, lasts, err := tapQuery(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	if r.Method == http.MethodHead {
		return
	}
	listener, err := d.Service.Observer().Listen(filter)
	switch {
	case errors.Is(err, observe.ErrTooManyListeners):
		writeError(w, http.StatusServiceUnavailable, "RESOURCE_EXHAUSTED", err.Error())
		return
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, "UNAVAILABLE", err.Error())
		return
	}
	defer listener.Close()
	w.Header().Set("Connection", "close") // the connection's deadlines must not apply to another request
	s := stream{w, http.NewResponseController(w)}
	s.control.SetReadDeadline(time.Time{}) // otherwise HTTP_READ_TIMEOUT would end the tap
	s.send(listener, r, lasts)
}

// stream is the answer to one request for /tap.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// send writes events until lasts is over, the client has disconnected, or the daemon stops.
func (s stream) send(l *observe.Listener, r *http.Request, lasts time.Duration) {
	end, report := time.NewTimer(lasts), time.NewTicker(tapReport)
	defer end.Stop()
	defer report.Stop()
	if s.flush() != nil { // sends the response header at once
		return
	}
loop:
	for {
		select { // look at the ends first: with many events, there is always another line
		case <-end.C:
			break loop
		case <-l.Ended():
			break loop
		default:
		}
		select {
		case line := <-l.Lines():
			if s.lines(l, line) != nil {
				return
			}
		case <-report.C:
			if s.dropped(l) != nil {
				return
			}
		case <-end.C:
			break loop
		case <-l.Ended():
			break loop
		case <-r.Context().Done():
			return
		}
	}
	s.rest(l)
}

// lines writes the given line and the lines queued after it, for at most the time tapReport: for a slow reader, there
// is always a queued line.
func (s stream) lines(l *observe.Listener, line []byte) error {
	for begun := time.Now(); ; {
		now := time.Now()
		s.control.SetWriteDeadline(now.Add(tapPatience))
		_, err := s.w.Write(line)
		l.Took(line)
		if err != nil {
			return err
		}
		if now.Sub(begun) > tapReport {
			return s.flush()
		}
		select {
		case line = <-l.Lines():
		default:
			return s.flush()
		}
	}
}

// rest writes the lines that are still queued when the tap ends, as many as the client reads within tapPatience.
func (s stream) rest(l *observe.Listener) {
	s.control.SetWriteDeadline(time.Now().Add(tapPatience))
	for range len(l.Lines()) {
		if _, err := s.w.Write(<-l.Lines()); err != nil {
			return
		}
	}
	s.dropped(l)
}

func (s stream) dropped(l *observe.Listener) error {
	n := l.Dropped()
	if n == 0 {
		return nil
	}
	s.control.SetWriteDeadline(time.Now().Add(tapPatience))
	if _, err := fmt.Fprintf(s.w, `{"dropped":%d}`+"\n", n); err != nil {
		return err
	}
	return s.flush()
}

func (s stream) flush() error {
	s.control.SetWriteDeadline(time.Now().Add(tapPatience))
	return s.control.Flush()
}

// tapQuery parses the parameters of the page /tap.
func tapQuery(q url.Values) (f observe.Filter, lasts time.Duration, err error) {
	if err := known(q, "domain", "key", "code", "unmatched", "rate", "sample", "seconds"); err != nil {
		return f, 0, err
	}
	f = observe.Filter{Domain: q.Get("domain"), Key: q.Get("key"), Sample: 1, Rate: 100}
	switch code := q.Get("code"); code {
	case "":
	case rls.OK.String():
		f.Code = rls.OK
	case rls.OverLimit.String():
		f.Code = rls.OverLimit
	default:
		return f, 0, fmt.Errorf("code is %q; want OK or OVER_LIMIT", code)
	}
	if text := q.Get("unmatched"); text != "" {
		if f.Unmatched, err = strconv.ParseBool(text); err != nil {
			return f, 0, fmt.Errorf("unmatched is %q; want true or false", text)
		}
	}
	if text := q.Get("sample"); text != "" {
		if f.Sample, err = strconv.ParseFloat(text, 64); err != nil || !(f.Sample > 0 && f.Sample <= 1) {
			return f, 0, fmt.Errorf("sample is %q; want a number above 0, at most 1", text)
		}
	}
	if f.Rate, err = number(q, "rate", 100, 10_000); err != nil {
		return f, 0, err
	}
	seconds, err := number(q, "seconds", 60, 3600)
	return f, time.Duration(seconds) * time.Second, err
}

// number parses a parameter whose value is an integer from 1 to the number in most. If the parameter is missing, the
// result is otherwise.
func number(q url.Values, name string, otherwise, most int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%s is %q; want a whole number from 1 to %d", name, text, most)
	}
	return n, nil
}

// known returns an error for unknown and for repeated parameters. If the name of a filter were misspelled, for example,
// nothing would be filtered.
func known(q url.Values, names ...string) error {
	for name, values := range q {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no parameter %q; there are %s", name, strings.Join(names, ", "))
		}
		if len(values) > 1 {
			return fmt.Errorf("%s stands twice", name)
		}
	}
	return nil
}
