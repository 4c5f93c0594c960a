package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/jsontext"
)

// allowed describes a request that the console forwards to the API. The body may have only these members, in exactly
// this spelling. The first member is required unless bodyless is set.
type allowed struct {
	method, path string
	members      []string
	bodyless     bool
}

// forwarded lists all requests that are forwarded. GET /keys is answered by the console itself.
var forwarded = []allowed{
	{"GET", "/admin/users", nil, true},
	{"GET", "/admin/users/{id}", nil, true},
	{"PUT", "/admin/users/{id}", []string{"ban_duration"}, false},
	{"DELETE", "/admin/users/{id}", []string{"should_soft_delete"}, true},
	{"GET", "/admin/users/{id}/sessions", nil, true},
	{"DELETE", "/admin/users/{id}/sessions", nil, true},
	{"DELETE", "/admin/users/{id}/sessions/{id}", nil, true},
	{"GET", "/admin/users/{id}/factors", nil, true},
	{"DELETE", "/admin/users/{id}/factors/{id}", nil, true},
	{"POST", "/invite", []string{"email"}, false},
	{"POST", "/recover", []string{"email"}, false},
	{"GET", "/admin/outbox", nil, true},
	{"POST", "/admin/outbox/{id}/resend", nil, true},
}

// matches reports whether a request has this method and path. It compares whole paths, segment by segment, so other
// spellings of the path do not match.
func (a allowed) matches(method, path string) bool {
	if a.method != method {
		return false
	}
	want, got := strings.Split(a.path, "/"), strings.Split(path, "/")
	return slices.EqualFunc(want, got, func(want, got string) bool {
		return want == got || want == "{id}" && len(got) == 36 && uuid.Validate(got) == nil
	})
}

// api forwards an allowed request to the handlers of the public port, with the signed-in administrator instead of a
// token.
func (s *Console) api(q *request) error {
	if q.refused != nil {
		return q.refused
	}
	path := strings.TrimPrefix(q.r.URL.Path, "/api")
	if q.r.Method == http.MethodGet && path == "/keys" {
		return s.getKeys(q)
	}
	i := slices.IndexFunc(forwarded, func(a allowed) bool { return a.matches(q.r.Method, path) })
	if i < 0 {
		return httpapi.NotFound()
	}
	body, err := forwarded[i].body(q)
	if err != nil {
		return err
	}
	to := &url.URL{Path: path}
	if q.r.Method == http.MethodGet {
		to.RawQuery = q.r.URL.RawQuery
	}
	return q.Forward(q.actor, q.r.Method, to, body)
}

// body returns the body to forward. It is encoded again from the allowed members, since the handlers ignore the case of
// member names.
func (a allowed) body(q *request) ([]byte, error) {
	text, err := q.Body()
	if err != nil || len(text) == 0 && a.bodyless {
		return nil, err
	}
	var given map[string]json.RawMessage
	if err := q.DecodeText(text, &given); err != nil {
		return nil, err
	}
	for name := range given {
		if !slices.Contains(a.members, name) {
			return nil, refusal.NotValid(fmt.Sprintf("The console sets %s and nothing else",
				strings.Join(a.members, ", ")))
		}
	}
	if !a.bodyless && len(given) != len(a.members) {
		return nil, refusal.NotValid(strings.Join(a.members, ", ") + " is missing")
	}
	return json.Marshal(given)
}

// getKeys lists the signing keys, as the command "auth keys list" does.
func (s *Console) getKeys(q *request) error {
	list, err := s.Keys(q.Context())
	if err != nil {
		return err
	}
	b := []byte(`{"keys":[`)
	for i, k := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsontext.AppendString(append(b, `{"kid":`...), k.KID)
		b = jsontext.AppendString(append(b, `,"alg":`...), k.Algorithm)
		b = jsontext.AppendString(append(b, `,"state":`...), k.State)
		b = httpapi.AppendTime(b, `,"created_at":`, k.CreatedAt)
		b = httpapi.AppendTime(b, `,"signs_at":`, k.SignsAt)
		b = append(httpapi.AppendTime(b, `,"revoked_at":`, k.RevokedAt), '}')
	}
	return q.JSON(http.StatusOK, append(b, ']', '}'))
}
