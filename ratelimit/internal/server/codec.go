package server

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all messages other than ShouldRateLimit's
	"google.golang.org/grpc/mem"

	"gatehouse/ratelimit/internal/service"
)

// exchange is one call of ShouldRateLimit in grpc-go's server: a pooled service.Call, and the bytes of the request,
// into which the Call's strings point. grpc-go frees these bytes when Unmarshal returns unless there is another
// reference to them, so the exchange holds a reference until the answer is encoded.
type exchange struct {
	service.Call
	wire mem.BufferSlice
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// release returns x to its pool. Nothing of x may be used after release.
func (x *exchange) release() {
	x.Request.Reset()
	x.Response.Reset()
	x.wire.Free()
	x.wire = nil
	exchanges.Put(x)
}

// codec encodes and decodes the messages of ShouldRateLimit with package rls, and leaves all other messages (health,
// reflection) to grpc-go's codec.
type codec struct{ other encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (codec) Name() string { return "proto" }

// Marshal encodes an answer and releases its exchange to the pool, which is safe because grpc-go encodes each unary
// answer exactly once.
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
	default: // the message came in several frames
		x.wire = mem.BufferSlice{data.MaterializeToBuffer(mem.DefaultBufferPool())}
	}
	return x.Request.Unmarshal(x.wire[0].ReadOnlyData())
}

// answerPool recycles the buffers of encoded answers. They are larger than 1 KiB, because grpc-go does not return
// smaller buffers to a pool.
type answerPool struct{ p sync.Pool }

var answers = &answerPool{sync.Pool{New: func() any {
	b := make([]byte, 0, 1152) // Go's first size class above 1 KiB
	return &b
}}}

func (a *answerPool) Get(int) *[]byte { return a.p.Get().(*[]byte) }

func (a *answerPool) Put(b *[]byte) {
	if cap(*b) <= 64<<10 {
		*b = (*b)[:0]
		a.p.Put(b)
	}
}
