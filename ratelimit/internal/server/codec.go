package server

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of all messages but decisions
	"google.golang.org/grpc/mem"

	"gatehouse/ratelimit/internal/service"
)

// exchange is one decision on the wire: a pooled call and the buffers that its strings point into. grpc-go frees the
// bytes of a request when Unmarshal returns, so the exchange holds a reference of its own until the answer is encoded.
type exchange struct {
	service.Call
	wire mem.BufferSlice
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// release returns x to its pool. Nothing of x may be used afterwards.
func (x *exchange) release() {
	x.Request.Reset()
	x.Response.Reset()
	x.wire.Free()
	x.wire = nil
	exchanges.Put(x)
}

// codec decodes and encodes decisions by hand and leaves every other message (health, reflection) to the registered
// codec.
type codec struct{ other encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (codec) Name() string { return "proto" }

// Marshal encodes an answer and releases its exchange: grpc-go encodes each unary answer exactly once.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	x, ok := v.(*exchange)
	if !ok {
		return c.other.Marshal(v)
	}
	defer x.release()
	buf := answers.Get(0)
	b, err := x.Response.Append((*buf)[:0])
	if err != nil {
		answers.Put(buf)
		return nil, err
	}
	*buf = b
	return mem.BufferSlice{mem.NewBuffer(buf, answers)}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	x, ok := v.(*exchange)
	if !ok {
		return c.other.Unmarshal(data, v)
	}
	switch len(data) {
	case 0:
		return x.Request.Unmarshal(nil)
	case 1:
		data.Ref()
		x.wire = data
	default: // a message that came in several frames
		x.wire = mem.BufferSlice{data.MaterializeToBuffer(mem.DefaultBufferPool())}
	}
	return x.Request.Unmarshal(x.wire[0].ReadOnlyData())
}

// answerPool recycles encoded answers. grpc-go returns no buffer of 1 KiB or less, so the buffers are larger.
type answerPool struct{ p sync.Pool }

var answers = &answerPool{sync.Pool{New: func() any {
	b := make([]byte, 0, 1152) // the next size class
	return &b
}}}

func (a *answerPool) Get(int) *[]byte { return a.p.Get().(*[]byte) }

func (a *answerPool) Put(b *[]byte) {
	if cap(*b) <= 64<<10 {
		*b = (*b)[:0]
		a.p.Put(b)
	}
}
