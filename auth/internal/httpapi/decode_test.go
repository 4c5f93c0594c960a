package httpapi

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/must"
)

func TestDecode(t *testing.T) {
	type body struct {
		Email string      `json:"email"`
		Data  flow.Object `json:"data"`
		Flag  *bool       `json:"flag"`
		flow.Challenge
		provider.IDTokenRequest
	}
	f := func(text, want string) {
		t.Helper()
		var in body
		err := decodeJSON([]byte(text), &in)
		got := ""
		if err != nil {
			p := err.(*problem)
			got = strings.TrimPrefix(p.msg, "Could not parse request body as JSON: ")
			if p.status != 400 || p.code != "bad_json" || strings.Contains(got, "httpapi") ||
				strings.Contains(got, "struct") {
				t.Errorf("%s: %+v", text, p)
			}
		}
		if !like(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	f(`{}`, "")
	f(` {"email":null,"data":null,"flag":null,"code_challenge":null,"unknown":[1]} `, "")
	f(`{"email":"\u00e4\ud83d\ude00\"\\u0000"}`, "")
	f(`{"data":{"a":{"b":[1,2.5e10,-1e-300]}}}`, "")
	f(``, "unexpected end of JSON input")
	f("  \n", "unexpected end of JSON input")
	f(`null`, "it is not an object")
	f(`[]`, "it is not an object")
	f(`"x"`, "it is not an object")
	f(`{`, "unexpected end of JSON input at byte 1")
	f(`{} {}`, "invalid character*")
	f(`{"email":1}`, "member email must be a string")
	f(`{"email":{}}`, "member email must be a string")
	f(`{"code_challenge":1}`, "member code_challenge must be a string")
	f(`{"id_token":1}`, "member id_token must be a string")
	f(`{"flag":"yes"}`, "member flag must be true or false")
	f(`{"data":[]}`, "member data must be an object")
	f(`{"data":"x"}`, "member data must be an object")
	f(`{"data":1}`, "member data must be an object")
	f(`{"email":"\u0000"}`, `a text contains \u0000`)
	f(`{"email":"\\\u0000"}`, `a text contains \u0000`)
	f(`{"\u0000":1}`, `a text contains \u0000`)
	f(`{"email":"\ud800"}`, jsontext.ErrHalfPair.Error())
	f(`{"email":"\ud800x"}`, jsontext.ErrHalfPair.Error())
	f(`{"email":"\ud800\n"}`, jsontext.ErrHalfPair.Error())
	f(`{"email":"\ud800\ud800"}`, jsontext.ErrHalfPair.Error())
	f(`{"email":"\udc00"}`, jsontext.ErrHalfPair.Error())
	f("{\"email\":\"\xff\"}", "it is not UTF-8")
	f(`{"data":{"a":1e9999}}`, "a number is too large")
	f(`{"data":{"a":1e-99999}}`, "a number is too large")
	f(`{"data":{"a":`+strings.Repeat("9", 1001)+`}}`, "a number has too many digits")
	f(`{"data":`+strings.Repeat(`{"a":`, 101)+`1`+strings.Repeat(`}`, 102), "it is nested too deeply")
}

// Whatever passes the checks must be JSON that PostgreSQL's jsonb takes too; here: no panic, and text
// that was accepted decodes the same a second time.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"data":{"a":[1e9,"\u00e4\ud83d\ude00"]}}`, `{"data":"\u0000"}`,
		`{"email":"\ud800"}`, `[`, "\xff", `{"data":{"a":1e99999}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var in, again struct {
			Email string      `json:"email"`
			Data  flow.Object `json:"data"`
		}
		if decodeJSON(text, &in) != nil {
			return
		}
		out, err := json.Marshal(map[string]any{"email": in.Email, "data": json.RawMessage(objectOrNull(in.Data))})
		must.Succeed(t, err)
		if err := decodeJSON(out, &again); err != nil && len(out) < 4*len(text) {
			t.Errorf("%q was accepted, %q is not: %v", text, out, err)
		}
	})
}

func objectOrNull(o flow.Object) []byte {
	if len(o) == 0 {
		return []byte("null")
	}
	return o
}

func TestBody_limits(t *testing.T) {
	a := open(t)
	fits := `{"email":"` + strings.Repeat("x", maxBody-12) + `"}`
	if len(fits) != maxBody {
		t.Fatal(len(fits))
	}
	a.do("POST /recover", fits).refused(400, "validation_failed", "*")
	a.do("POST /recover", fits+" ").is(413,
		`{"code":413,"error_code":"request_entity_too_large","msg":"Request body too large (max 1048576 bytes)"}`)
	a.do("POST /recover", struct{ Email string }{strings.Repeat("x", 2*maxBody)}).refused(413,
		"request_entity_too_large", "*")
	a.do("GET /settings", fits+" ").is(200, "*") // the body is not read
	a.do("POST /recover", nil).refused(400, "bad_json", "*unexpected end of JSON input")
}

// A body that dribbles in ends with the request's time.
func TestBody_slow(t *testing.T) {
	a := open(t, func(_ *flow.Settings, s *Settings) { s.MaxDuration = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", a.http.Listener.Addr().String())
	must.Succeed(t, err)
	defer conn.Close()
	conn.Write([]byte("POST /recover HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 1024)
	n, _ := conn.Read(buf)
	if !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 504 ") {
		t.Errorf("answer %q", buf[:n])
	}
}

// The bound on reading a body must not be taken for a client that hung up while its request is worked on.
func TestBody_boundEndsWithTheBody(t *testing.T) {
	a := open(t, func(_ *flow.Settings, s *Settings) { s.MaxDuration = 50 * time.Millisecond })
	a.server.mux.Handle("POST /late", handler(func(c *call) error {
		if _, err := c.body(); err != nil {
			return err
		}
		<-c.ctx().Done()
		return c.ctx().Err()
	}))
	for range 5 {
		a.do("POST /late", "{}").is(504, `{"code":504,"error_code":"request_timeout",*`)
	}
	if log := a.log.String(); strings.Contains(log, clientGone) {
		t.Errorf("log %s", log)
	}
}
