package cli

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/server"
)

// maxRecordedLine is the greatest length of a line, in bytes. Lines of /tap have at most 16 KiB, bodies of /json at
// most 1 MiB unless HTTP_MAX_BODY_BYTES allows more.
const maxRecordedLine = 4 << 20

// maxDisorder is how much earlier a line's time may be than that of a preceding line. Lines are not in the order of
// their times, because a daemon writes them when it answers, and because one file may have several recordings.
const maxDisorder = 5 * time.Second

// maxHeld bounds the total length, in bytes, of the lines that wait until no line with an earlier time can follow.
// Within the time maxDisorder, /tap writes fewer bytes. Beyond the bound, the request with the earliest time is decided
// at once.
const maxHeld = 64 << 20

// recorded is a request and the time of its arrival.
type recorded struct {
	at      time.Time
	request rls.Request
	sampled bool // the line comes from a tap that recorded only a sample of the requests
}

// These errors are the reasons for which a line of a recording is skipped.
var (
	errBrokenLine = errors.New("no request")
	errCutLine    = errors.New("its texts are cut")
)

// droppedLine is the error for a line that reports how many requests the tap has left out.
type droppedLine uint64

func (d droppedLine) Error() string { return fmt.Sprintf("%d requests are left out", uint64(d)) }

// parseRecorded parses a line of /tap, or a request in the form of /json with the additional member "at", its time.
func parseRecorded(line []byte) (recorded, error) {
	var head struct {
		At      *time.Time `json:"at"`
		Code    *string    `json:"code"` // only lines of /tap have it
		Cut     bool       `json:"cut"`
		Dropped *uint64    `json:"dropped"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return recorded{}, errBrokenLine
	}
	switch {
	case head.At == nil && head.Dropped != nil:
		return recorded{}, droppedLine(*head.Dropped)
	case head.Cut:
		return recorded{}, errCutLine
	case head.At == nil || head.At.Unix() < 0 || head.At.Unix() > math.MaxUint32:
		return recorded{}, errBrokenLine
	}
	r := recorded{at: *head.At}
	var err error
	if head.Code != nil {
		err = r.fromTap(line)
	} else {
		err = r.fromJSON(line)
	}
	if err != nil {
		return recorded{}, errBrokenLine
	}
	return r, nil
}

func (r *recorded) fromTap(line []byte) error {
	var e observe.Event
	if err := json.Unmarshal(line, &e); err != nil {
		return err
	}
	if e.Hits > math.MaxUint32 {
		return fmt.Errorf("%d hits", e.Hits)
	}
	r.sampled = e.Sample > 0 && e.Sample < 1
	r.request = rls.Request{Domain: e.Domain, HitsAddend: uint32(e.Hits)}
	for i := range e.Descriptors {
		in := &e.Descriptors[i]
		out := rls.Descriptor{Entries: in.Entries, Negative: in.Refund}
		if in.Hits != nil {
			out.Hits, out.HasHits = *in.Hits, true
		}
		if own := in.OwnLimit; own != nil {
			limit, err := server.ParseLimit(fmt.Sprintf("%d/%s", own.RequestsPerUnit, own.Unit))
			if err != nil {
				return err
			}
			out.Limit, out.HasLimit = limit, true
		}
		r.request.Descriptors = append(r.request.Descriptors, out)
	}
	return nil
}

func (r *recorded) fromJSON(line []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return err
	}
	delete(members, "at") // a request has no such field
	request, err := json.Marshal(members)
	if err == nil {
		r.request, err = server.ParseRequestJSON(request)
	}
	return err
}

// recording reads recorded requests and returns them in the order of their times.
type recording struct {
	in      *bufio.Reader
	waiting recordedHeap // requests that are held until no earlier one can follow
	held    int          // size of the lines in waiting, in bytes
	maxHeld int
	decided time.Time // the time of the request that next returned last
	lines   int
	latest  time.Time // the latest time in the lines read so far
	ended   bool
	skipped skippedLines
	sampled bool // set if some lines come from a sampling tap
}

// skippedLines counts the lines and requests that are not decided, by the reason.
type skippedLines struct {
	broken, cut, late int
	overtaken         int    // lines that follow a later line which has been decided because of maxHeld
	dropped           uint64 // requests that the tap has left out, as it reports
}

func newRecording(in io.Reader) *recording {
	return &recording{in: bufio.NewReaderSize(in, maxRecordedLine), maxHeld: maxHeld}
}

// next returns the request with the next time; io.EOF after the last request.
func (r *recording) next() (recorded, error) {
	for !r.ended && (len(r.waiting) == 0 || r.latest.Sub(r.waiting[0].at) < maxDisorder && r.held <= r.maxHeld) {
		line, err := r.line()
		if err == io.EOF {
			r.ended = true
		} else if err != nil {
			return recorded{}, err
		}
		if len(line) > 0 {
			r.take(line)
		}
	}
	if len(r.waiting) == 0 {
		return recorded{}, io.EOF
	}
	first := heap.Pop(&r.waiting).(numbered)
	r.held -= first.bytes
	r.decided = first.at
	return first.recorded, nil
}

// line reads a line. It returns nil for a line that is too long or blank. At the end of the recording it returns the
// rest of the text with io.EOF.
func (r *recording) line() ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		r.skipped.broken++
		for err == bufio.ErrBufferFull {
			_, err = r.in.ReadSlice('\n')
		}
		return nil, err
	}
	return bytes.TrimSpace(line), err
}

// take adds the request in a line to the waiting requests, or counts the reason why the line is skipped.
func (r *recording) take(line []byte) {
	one, err := parseRecorded(line)
	var dropped droppedLine
	switch {
	case errors.As(err, &dropped):
		r.skipped.dropped += uint64(dropped)
	case err == errCutLine:
		r.skipped.cut++
	case err != nil:
		r.skipped.broken++
	case r.latest.Sub(one.at) > maxDisorder:
		r.skipped.late++
	case one.at.Before(r.decided):
		r.skipped.overtaken++
	default:
		if one.at.After(r.latest) {
			r.latest = one.at
		}
		r.sampled = r.sampled || one.sampled
		r.lines++
		r.held += len(line)
		heap.Push(&r.waiting, numbered{one, r.lines, len(line)})
	}
}

// numbered is a recorded request with the number of its line, by which requests with the same time keep their order.
type numbered struct {
	recorded
	line  int
	bytes int // length of the line
}

type recordedHeap []numbered

func (h recordedHeap) Len() int { return len(h) }

func (h recordedHeap) Less(i, j int) bool {
	if c := h[i].at.Compare(h[j].at); c != 0 {
		return c < 0
	}
	return h[i].line < h[j].line
}

func (h recordedHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *recordedHeap) Push(x any) { *h = append(*h, x.(numbered)) }

func (h *recordedHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = numbered{} // release the texts of the request
	*h = (*h)[:last]
	return x
}
