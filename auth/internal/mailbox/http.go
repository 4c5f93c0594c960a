package mailbox

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"gatehouse/shared/httpx"
)

//go:embed page.html
var pageSource string

//go:embed app.js
var script []byte

var page = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageSource)) })

// mostWait is how long a client may wait for a message.
const mostWait = 30 * time.Second

// Handler serves the box:
//
//	GET /                      the list, as a page
//	GET /m/{id}                one message, as a page
//	GET /app.js                the script of both pages
//	GET /messages              messages as JSON, newest first; ?to=, ?kind= and ?channel= select, ?wait=10 waits up to
//	                           ten seconds for a message
//	GET /messages/{id}         one message, as JSON
//	GET /messages/{id}/html    the HTML of one mail, without scripts
//	GET /latest/{field}        one field of the newest message as text: link, code, subject, text, html, to or kind;
//	                           the same parameters select
//	DELETE /messages           drops all messages
func (b *Box) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", b.getPage)
	mux.HandleFunc("GET /m/{id}", b.getMessagePage)
	mux.HandleFunc("GET /app.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		w.Write(script)
	})
	mux.HandleFunc("GET /messages", b.getMessages)
	mux.HandleFunc("GET /messages/{id}", b.getMessage)
	mux.HandleFunc("GET /messages/{id}/html", b.getBody)
	mux.HandleFunc("GET /latest/{field}", b.getLatest)
	mux.HandleFunc("DELETE /messages", func(w http.ResponseWriter, _ *http.Request) {
		b.Clear()
		w.WriteHeader(http.StatusNoContent)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy",
			"default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "+
				"frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		if !httpx.IsLoopbackHost(r.Host) {
			http.Error(w, "the dev mailbox answers under loopback names only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// chosen returns the messages that the request's query selects.
func (b *Box) chosen(r *http.Request) []Message {
	q := r.URL.Query()
	f := Filter{To: q.Get("to"), Kind: q.Get("kind"), Channel: q.Get("channel")}
	if strings.HasPrefix(f.To, " ") {
		f.To = "+" + f.To[1:] // ?to=+1555… as people write it
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(q.Get("wait"), "s"), 64)
	if err != nil || !(seconds > 0) {
		return b.Messages(f)
	}
	ctx, cancel := context.WithTimeout(r.Context(),
		min(time.Duration(min(seconds, 3600)*float64(time.Second)), mostWait))
	defer cancel()
	return b.Wait(ctx, f)
}

func writeJSON(w http.ResponseWriter, v any) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // so that links can be copied
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(err) // strings and times always encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(out.Bytes())
}

func (b *Box) getMessages(w http.ResponseWriter, r *http.Request) { writeJSON(w, b.chosen(r)) }

// one returns the message that the path names. If there is none, it answers the request and returns nil.
func (b *Box) one(w http.ResponseWriter, r *http.Request) *Message {
	id, err := uuid.Parse(r.PathValue("id"))
	if err == nil {
		for _, m := range b.Messages(Filter{}) {
			if m.ID == id {
				return &m
			}
		}
	}
	http.Error(w, "no such message", http.StatusNotFound)
	return nil
}

func (b *Box) getMessage(w http.ResponseWriter, r *http.Request) {
	if m := b.one(w, r); m != nil {
		writeJSON(w, m)
	}
}

// getBody shows a mail's HTML in a frame as a mail program does: without scripts, without access to the surrounding
// page, with links that open in a new window.
func (b *Box) getBody(w http.ResponseWriter, r *http.Request) {
	m := b.one(w, r)
	if m == nil {
		return
	}
	w.Header().Set("Content-Security-Policy",
		"sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src "+
			"http: https: data:; frame-ancestors 'self'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, `<base target="_blank">`+m.HTML)
}

func (b *Box) getLatest(w http.ResponseWriter, r *http.Request) {
	list := b.chosen(r)
	if len(list) == 0 {
		http.Error(w, "no such message", http.StatusNotFound)
		return
	}
	m := list[0]
	value, ok := map[string]string{
		"link": m.Link, "code": m.Code, "subject": m.Subject, "text": m.Text, "html": m.HTML, "to": m.To,
		"kind": m.Kind,
	}[r.PathValue("field")]
	if !ok {
		http.Error(w, "no such field", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, value+"\n")
}

func (b *Box) getPage(w http.ResponseWriter, r *http.Request) { writePage(w, "list", b.chosen(r)) }

func (b *Box) getMessagePage(w http.ResponseWriter, r *http.Request) {
	if m := b.one(w, r); m != nil {
		writePage(w, "message", m)
	}
}

func writePage(w http.ResponseWriter, name string, data any) {
	var out bytes.Buffer
	if err := page().ExecuteTemplate(&out, name, data); err != nil {
		panic(err) // cannot fail: the template is part of the program
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(out.Bytes())
}

// Serve serves the Box on l until ctx ends. It returns an error without serving if l does not listen on a loopback
// address.
func (b *Box) Serve(ctx context.Context, l net.Listener, log *slog.Logger) error {
	defer l.Close()
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return errors.New("the dev mailbox listens on loopback addresses only")
	}
	srv := httpx.NewServer(b.Handler(), httpx.Timeouts{Header: 10 * time.Second, Read: 30 * time.Second,
		Write: mostWait + 30*time.Second, Idle: time.Minute}, log)
	srv.BaseContext = func(net.Listener) context.Context { return ctx } // ends the requests that wait for a message
	return httpx.ServeUntil(ctx, srv, l, 2*time.Second)
}
