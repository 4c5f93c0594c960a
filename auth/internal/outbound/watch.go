package outbound

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// Call is one question and its answer: each attempt and each redirect is one.
type Call struct {
	// Target names the receiver, in the operator's words: "hook send-email", "sms twilio", "provider github". There
	// are as many as the settings name.
	Target string
	// Method is HTTP's, "" for a call that isn't HTTP.
	Method string
	// Host is the receiving host, with a port if it isn't the usual one; "" where the call has none.
	Host string
}

// Watch is called as each call begins. What it returns is called once, when the answer was read or dropped: status is
// HTTP's, 0 without an answer or for another protocol. A nil Watch costs nothing.
type Watch func(ctx context.Context, c Call) (context.Context, func(status int, err error))

type targetKey struct{}

// WithTarget names the receiver of calls made with a context, where the clients' Options say less.
func (c Clients) WithTarget(ctx context.Context, to string) context.Context {
	if !c.watched {
		return ctx
	}
	return context.WithValue(ctx, targetKey{}, to)
}

// watch has a call watched until its body is closed.
func (g *gate) watch(r *http.Request, isDiscovered bool) (*http.Response, error) {
	c := Call{Target: g.options.Target, Method: r.Method, Host: r.URL.Host}
	if to, ok := r.Context().Value(targetKey{}).(string); ok {
		c.Target = to
	}
	ctx, done := g.options.Watch(r.Context(), c)
	r = r.WithContext(ctx)
	if g.options.Inject != nil {
		r.Header = r.Header.Clone() // the copy shares it
		g.options.Inject(ctx, r.Header)
	}
	resp, err := g.send(r, isDiscovered)
	if err != nil {
		done(0, err)
		return nil, err
	}
	body := &watchedBody{ReadCloser: resp.Body}
	body.end = sync.OnceFunc(func() { done(resp.StatusCode, body.failed) })
	resp.Body = body
	return resp, nil
}

// watchedBody is a body that reports when it is done with.
type watchedBody struct {
	io.ReadCloser
	failed error
	end    func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.failed = err
	}
	return n, err
}

func (b *watchedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
