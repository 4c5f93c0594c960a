// Package smstest is a server that stands in for the four SMS gateways in tests. Each gateway has its own path on the
// server. The server fails the test if a request deviates from the gateway's protocol, and returns failures where a
// test configures them.
//
// It is for tests only and sends nothing.
package smstest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The operator's accounts at the gateways: the only values that the server accepts.
const (
	AccountSID = "AC0123456789abcdef0123456789abcdef"
	AuthToken  = "twilio-token-hush"
	From       = "MG0123456789abcdef0123456789abcdef"
	ContentSID = "HX0123456789abcdef0123456789abcdef"

	AccessKey  = "messagebird-key-hush"
	Originator = "+4915100000000"

	TextlocalKey    = "textlocal/key+hush="
	TextlocalSender = "GATEHS"

	VonageKey    = "vonagekey"
	VonageSecret = "vonage-secret-hush"
	VonageFrom   = "Gatehouse"
)

// Secrets returns the values above that must never appear in a log or an error, in the order Twilio, MessageBird,
// Textlocal, Vonage.
func Secrets() []string { return []string{AuthToken, AccessKey, TextlocalKey, VonageSecret} }

// Request is a request for a message that follows the gateway's protocol.
type Request struct {
	Gateway string // twilio, messagebird, textlocal, vonage
	// To is the recipient's number without the plus. Text is the text of the message; "" if a content template replaces
	// it.
	To, Text, Channel string
	Form              url.Values
}

// Answer is an answer that the server gives instead of accepting the message.
type Answer struct {
	Status int // 0: 200
	Body   string
	// Location makes the answer a redirect, if Status is one of a redirect.
	Location string
	// Hang delays the answer until the client disconnects or the server is closed.
	Hang bool
	// Drop makes the server close the connection without an answer.
	Drop bool
}

// Server stands in for all four gateways.
type Server struct {
	t    testing.TB
	http *httptest.Server
	done chan struct{}

	mu     sync.Mutex
	behave func(Request) *Answer
	taken  []Request
	asked  int
}

// Start starts a server on a free port, which is closed when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, done: make(chan struct{})}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		close(s.done)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// URL returns the server's URL, which is the same for every gateway.
func (s *Server) URL() string { return s.http.URL }

// Environ returns the settings with which a daemon uses the server for every gateway, all but AUTH_SMS_PROVIDER.
func (s *Server) Environ() []string {
	return []string{
		"AUTH_SMS_TWILIO_URL=" + s.URL(), "AUTH_SMS_TWILIO_ACCOUNT_SID=" + AccountSID,
		"AUTH_SMS_TWILIO_AUTH_TOKEN=" + AuthToken, "AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID=" + From,
		"AUTH_SMS_MESSAGEBIRD_URL=" + s.URL(), "AUTH_SMS_MESSAGEBIRD_ACCESS_KEY=" + AccessKey,
		"AUTH_SMS_MESSAGEBIRD_ORIGINATOR=" + Originator,
		"AUTH_SMS_TEXTLOCAL_URL=" + s.URL(), "AUTH_SMS_TEXTLOCAL_API_KEY=" + TextlocalKey,
		"AUTH_SMS_TEXTLOCAL_SENDER=" + TextlocalSender,
		"AUTH_SMS_VONAGE_URL=" + s.URL(), "AUTH_SMS_VONAGE_API_KEY=" + VonageKey,
		"AUTH_SMS_VONAGE_API_SECRET=" + VonageSecret, "AUTH_SMS_VONAGE_FROM=" + VonageFrom,
	}
}

// Behave makes the server call f for each request, and answer with its result. If f or its result is nil, the server
// accepts the message.
func (s *Server) Behave(f func(Request) *Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behave = f
}

// Always returns a function for Behave that gives the same answer to all requests.
func Always(a Answer) func(Request) *Answer { return func(Request) *Answer { return &a } }

// Taken returns the messages that were accepted, oldest first.
func (s *Server) Taken() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.taken)
}

// Asked returns how many requests there were, without those for account data.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// balance answers a request for data of the operator's account. It returns false if r is not such a request.
func (s *Server) balance(w http.ResponseWriter, r *http.Request) bool {
	var right bool
	var denied Answer
	switch r.Method + " " + r.URL.Path {
	case "GET /2010-04-01/Accounts/" + AccountSID + ".json":
		right, denied = r.Header.Get("Authorization") == "Basic "+
			base64.StdEncoding.EncodeToString([]byte(AccountSID+":"+AuthToken)), deniedBy["twilio"]
	case "GET /balance":
		right, denied = r.Header.Get("Authorization") == "AccessKey "+AccessKey, deniedBy["messagebird"]
	case "POST /balance/":
		right, denied = r.FormValue("apikey") == TextlocalKey, deniedBy["textlocal"]
	case "GET /account/get-balance":
		right, denied = r.FormValue("api_key") == VonageKey && r.FormValue("api_secret") == VonageSecret,
			Answer{Status: 401, Body: "{}"}
	default:
		return false
	}
	if !right {
		answer(w, denied)
		return true
	}
	answer(w, Answer{Body: `{"status":"success"}`})
	return true
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if s.balance(w, r) {
		return
	}
	s.mu.Lock()
	s.asked++
	behave := s.behave
	s.mu.Unlock()
	q, denied, err := read(r)
	if err != nil {
		s.t.Errorf("smstest: %s %s: %v", r.Method, r.URL, err)
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	var a *Answer
	if behave != nil {
		a = behave(q)
	}
	switch {
	case denied:
		answer(w, deniedBy[q.Gateway])
	case a == nil:
		s.mu.Lock()
		s.taken = append(s.taken, q)
		n := len(s.taken)
		s.mu.Unlock()
		answer(w, took(q, n))
	case a.Hang:
		select {
		case <-s.done:
		case <-r.Context().Done():
		}
	case a.Drop:
		panic(http.ErrAbortHandler)
	default:
		answer(w, *a)
	}
}

func answer(w http.ResponseWriter, a Answer) {
	w.Header().Set("Content-Type", "application/json")
	if a.Location != "" {
		w.Header().Set("Location", a.Location)
	}
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	fmt.Fprint(w, a.Body)
}

// read checks that the request follows its gateway's protocol. denied is true if only the credentials are wrong.
func read(r *http.Request) (q Request, denied bool, err error) {
	if r.Method != "POST" || r.URL.RawQuery != "" ||
		r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		return q, false, fmt.Errorf("content type %q", r.Header.Get("Content-Type"))
	}
	if err := r.ParseForm(); err != nil {
		return q, false, err
	}
	q.Form, q.Channel = r.PostForm, "sms"
	for name, values := range q.Form {
		if len(values) != 1 {
			return q, false, fmt.Errorf("%s %d times", name, len(values))
		}
	}
	auth := r.Header.Get("Authorization")
	if auth == "" && r.Header["Authorization"] != nil {
		return q, false, fmt.Errorf("an empty Authorization")
	}
	switch sid, isTwilio := strings.CutPrefix(r.URL.Path, "/2010-04-01/Accounts/"); {
	case isTwilio:
		q.Gateway = "twilio"
		sid, ok := strings.CutSuffix(sid, "/Messages.json")
		if !ok {
			return q, false, fmt.Errorf("no such path")
		}
		denied = sid != AccountSID ||
			auth != "Basic "+base64.StdEncoding.EncodeToString([]byte(AccountSID+":"+AuthToken))
		return q, denied, q.readTwilio()
	case r.URL.Path == "/messages":
		q.Gateway, denied = "messagebird", auth != "AccessKey "+AccessKey
		err = q.fields(map[string]string{"originator": Originator, "type": "sms", "datacoding": "unicode"}, "body",
			"recipients")
		q.To, q.Text = q.Form.Get("recipients"), q.Form.Get("body")
	case r.URL.Path == "/send":
		q.Gateway, denied = "textlocal", q.Form.Get("apikey") != TextlocalKey
		err = q.fields(map[string]string{"sender": TextlocalSender}, "apikey", "message", "numbers")
		q.To, q.Text = q.Form.Get("numbers"), q.Form.Get("message")
	case r.URL.Path == "/sms/json":
		q.Gateway, denied = "vonage", q.Form.Get("api_key") != VonageKey || q.Form.Get("api_secret") != VonageSecret
		q.To, q.Text = q.Form.Get("to"), q.Form.Get("text")
		want := map[string]string{"from": VonageFrom}
		if strings.ContainsFunc(q.Text, func(r rune) bool { return r > 127 }) {
			want["type"] = "unicode"
		}
		err = q.fields(want, "to", "text", "api_key", "api_secret")
	default:
		return q, false, fmt.Errorf("no such path")
	}
	if err == nil && q.Gateway != "messagebird" && auth != "" {
		err = fmt.Errorf("an Authorization that it doesn't know")
	}
	if err == nil {
		err = number(q.To)
	}
	return q, denied, err
}

func (q *Request) readTwilio() error {
	to, whatsApp := strings.CutPrefix(q.Form.Get("To"), "whatsapp:")
	want, free := map[string]string{"Channel": "sms"}, []string{"To", "From", "Body"}
	if whatsApp {
		q.Channel, want["Channel"] = "whatsapp", "whatsapp"
	}
	if q.Form.Has("ContentSid") {
		want["ContentSid"], free[2] = ContentSID, "ContentVariables"
		if !whatsApp {
			return fmt.Errorf("a content template for an SMS")
		}
	}
	q.Text = q.Form.Get("Body")
	to, plus := strings.CutPrefix(to, "+")
	if q.To = to; !plus {
		return fmt.Errorf("parameter To is %q", q.Form.Get("To"))
	}
	if err := q.fields(want, free...); err != nil {
		return err
	}
	return number(q.To)
}

// fields returns an error unless the form's parameters are exactly those of want, with the same values, and those of
// free, with any values.
func (q *Request) fields(want map[string]string, free ...string) error {
	names := slices.Sorted(maps.Keys(q.Form))
	all := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(want)), free...)))
	if !slices.Equal(names, all) {
		return fmt.Errorf("the form has %v, not %v", names, all)
	}
	for name, value := range want {
		if got := q.Form.Get(name); got != value {
			return fmt.Errorf("%s is %q, not %q", name, got, value)
		}
	}
	return nil
}

func number(s string) error {
	if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return fmt.Errorf("%q is no number", s)
	}
	return nil
}

// took returns the gateway's answer to an accepted message. n is the number of the message.
func took(q Request, n int) Answer {
	switch q.Gateway {
	case "twilio":
		return Answer{Status: 201,
			Body: fmt.Sprintf(`{"sid":"SM%032d","status":"queued","error_code":null,"error_message":null}`, n)}
	case "messagebird":
		return Answer{Status: 201,
			Body: fmt.Sprintf(`{"id":"%032d","recipients":{"totalCount":1,"totalSentCount":1}}`, n)}
	case "textlocal":
		return Answer{Body: fmt.Sprintf(`{"balance":1162,"messages":[{"id":"%d","recipient":%s}],"status":"success"}`,
			n, q.To)}
	}
	return Answer{Body: fmt.Sprintf(`{"message-count":"1","messages":[{"to":%q,"message-id":"%d","status":"0"}]}`, q.To,
		n)}
}

// deniedBy has each gateway's answer to wrong credentials.
var deniedBy = map[string]Answer{
	"twilio": {Status: 401,
		Body: `{"code":20003,"message":"Authenticate","more_info":"https://www.twilio.com/docs/errors/20003","status":401}`},
	"messagebird": {Status: 401,
		Body: `{"errors":[{"code":2,"description":"Request not allowed (incorrect access_key)","parameter":"access_key"}]}`},
	"textlocal": {Body: `{"errors":[{"code":3,"message":"Invalid login details"}],"status":"failure"}`},
	"vonage":    {Body: `{"message-count":"1","messages":[{"status":"4","error-text":"Bad Credentials"}]}`},
}
