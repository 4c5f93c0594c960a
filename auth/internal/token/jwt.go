package token

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/auth/internal/jsontext"
)

// leeway is how far ahead the clock may be by which iat and nbf were set. There is no leeway for exp, since clients
// refresh in time.
const leeway = 30 * time.Second

// maxHeader is the maximum length of an encoded header that is parsed. This daemon's own headers have 60 to 130 bytes.
const maxHeader = 2048

// scratch is a pooled buffer for one call.
type scratch struct{ b []byte }

var scratches = sync.Pool{New: func() any { return &scratch{b: make([]byte, 0, 2048)} }}

func (s *scratch) free() {
	if cap(s.b) <= 32<<10 { // a huge token must not occupy memory for ever
		scratches.Put(s)
	}
}

// Sign appends to dst a token with the claims, signed with the current key. It fails if a metadata field is not a JSON
// object. It also signs claims that are too large for Verify (MaxSize): otherwise a user with that much metadata could
// not even sign in to remove it.
func (s *Set) Sign(dst []byte, c *Claims) ([]byte, error) {
	buf := scratches.Get().(*scratch)
	defer buf.free()
	var err error
	if buf.b, err = c.appendTo(buf.b[:0]); err != nil {
		return dst, fmt.Errorf("sign: %w", err)
	}
	return s.signer.signPayload(dst, buf.b)
}

// SignPayload appends to dst a token with any claims object, for example one from a hook.
func (s *Set) SignPayload(dst, payload []byte) ([]byte, error) {
	return s.signer.signPayload(dst, payload)
}

// SignService appends to dst a token for a service, which has a role and neither user nor session. If tokens that are
// signed with the shared secret are accepted, it is signed with this secret, as existing installations expect, and
// otherwise with the current key. It has no audience, since only the role matters.
func (s *Set) SignService(dst []byte, role, issuer string, issued, expires time.Time) ([]byte, error) {
	k := s.signer
	if s.secret != nil {
		k = s.secret
	}
	payload := []byte{'{'}
	if issuer != "" {
		payload = append(jsontext.AppendString(append(payload, `"iss":`...), issuer), ',')
	}
	payload = jsontext.AppendString(append(payload, `"role":`...), role)
	payload = strconv.AppendInt(append(payload, `,"iat":`...), issued.Unix(), 10)
	payload = strconv.AppendInt(append(payload, `,"exp":`...), expires.Unix(), 10)
	return k.signPayload(dst, append(payload, '}'))
}

func (k *Key) signPayload(dst, payload []byte) ([]byte, error) {
	buf := scratches.Get().(*scratch)
	defer buf.free()
	start := len(dst)
	dst = append(dst, k.header...)
	dst = b64.AppendEncode(dst, payload)
	var err error
	if buf.b, err = k.sign(buf.b[:0], dst[start:]); err != nil {
		return dst[:start], fmt.Errorf("sign with %s: %w", k, err)
	}
	return b64.AppendEncode(append(dst, '.'), buf.b), nil
}

// Verify checks the token text at the time now, and reads its claims into c, whose AMR slice is reused. The key is
// found by the header's kid; without a kid, it is the shared secret. The key determines the algorithm. No claim is read
// before the signature is verified. The caller must check the IDs, the session and the role.
//
// exp is required in every token with a sub. A token with an unknown kid is refused even if the shared secret has
// signed it.
func (s *Set) Verify(c *Claims, text string, now time.Time) (*Key, error) {
	if len(text) > MaxSize {
		return nil, ErrTooLarge
	}
	head := strings.IndexByte(text, '.')
	last := strings.LastIndexByte(text, '.')
	if head <= 0 || last <= head+1 || strings.IndexByte(text[head+1:last], '.') >= 0 {
		return nil, malformed("it has not three parts")
	}
	if breaksLine(text) {
		return nil, malformed("it holds a line break")
	}
	k := s.header[text[:head+1]]
	if k == nil {
		var err error
		if k, err = s.keyFor(text[:head]); err != nil {
			return nil, err
		}
	}
	if b64.EncodedLen(k.size) != len(text)-last-1 {
		return nil, ErrSignature
	}
	buf := scratches.Get().(*scratch)
	defer buf.free()
	var err error
	buf.b = append(buf.b[:0], text...)
	if buf.b, err = b64.AppendDecode(buf.b, buf.b[last+1:]); err != nil {
		return nil, malformed("the signature is not base64url")
	}
	if !k.verify(buf.b[:last], buf.b[len(text):]) {
		return nil, ErrSignature
	}
	if buf.b, err = b64.AppendDecode(buf.b[:len(text)], buf.b[head+1:last]); err != nil {
		return nil, malformed("the claims are not base64url")
	}
	if err := c.parse(string(buf.b[len(text):])); err != nil {
		return nil, err
	}
	return k, c.check(k, s.issuer, now)
}

// check checks the times and the issuer. It compares iss only in tokens that an asymmetric key has signed: other
// services that know JWT_SECRET may issue tokens too, with an iss of their own.
func (c *Claims) check(k *Key, issuer string, now time.Time) error {
	late := now.Add(leeway).Unix()
	switch {
	case c.ExpiresAt == 0 && c.Subject != "":
		return ErrNoExpiry
	case c.ExpiresAt != 0 && now.Unix() >= c.ExpiresAt:
		return ErrExpired
	case c.NotBefore > late || c.IssuedAt > late:
		return ErrNotYetValid
	case c.Issuer != "" && issuer != "" && !k.Symmetric() && c.Issuer != issuer:
		return ErrIssuer
	}
	return nil
}

// keyFor returns the key for a token whose header is not, byte for byte, one that this daemon writes. The header may
// contain only alg, kid and typ: all other members of RFC 7515 section 4.1 would let the token choose its own key, or
// require extensions (crit, b64) that this package lacks. Unknown members are refused to be safe.
func (s *Set) keyFor(encoded string) (*Key, error) {
	if len(encoded) > maxHeader {
		return nil, malformed("the header is too long")
	}
	raw, err := b64.DecodeString(encoded)
	if err != nil {
		return nil, malformed("the header is not base64url")
	}
	var alg, kid string
	typ, hasKid := "JWT", false
	known := fields{{"alg", &alg}, {"kid", &kid}, {"typ", &typ}}
	err = jsontext.Members(string(raw), func(name, value string) error {
		if name != "alg" && name != "kid" && name != "typ" {
			return fmt.Errorf("member %.20q is not allowed", name)
		}
		hasKid = hasKid || name == "kid"
		err := known.read(name, value)
		if err == nil && !strings.EqualFold(typ, "JWT") {
			err = errors.New("is not JWT")
		}
		if err != nil {
			return fmt.Errorf("%s is wrong: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, malformed("header: %v", err)
	}
	k := s.secret
	if hasKid {
		if k = s.byID[kid]; k == nil && s.revoked[kid] {
			return nil, ErrRevokedKey
		}
	}
	if k == nil {
		return nil, ErrUnknownKey
	}
	if alg != k.alg.String() {
		return nil, ErrAlgorithm
	}
	return k, nil
}
