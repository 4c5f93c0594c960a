package webauthn

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// Limits of the members of messages, in bytes after decoding.
const (
	maxID                = 1023
	maxClientData        = 4 << 10
	maxAuthData          = 4 << 10
	maxAttestationObject = 16 << 10
	maxSignature         = 1024
	maxUserHandle        = 64
)

var strict = base64.RawURLEncoding.Strict()

// Encode returns bytes in base64url without padding, as the members of messages have them.
func Encode(b []byte) string { return strict.EncodeToString(b) }

// decode reads base64url without padding. It refuses CR and LF, which the standard library would skip.
func decode(text string) ([]byte, bool) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, false
	}
	b, err := strict.DecodeString(text)
	return b, err == nil
}

// reader decodes members of a message. Once a member is malformed, it sets err and decodes nothing further.
type reader struct{ err error }

func (r *reader) bytes(name, text string, least, most int) []byte {
	b, ok := decode(text)
	if (!ok || len(b) < least || len(b) > most) && r.err == nil {
		r.err = unreadable(name)
	}
	return b
}

// open reads a PublicKeyCredential, in the form that its method toJSON returns. It reads only the members that are
// checked, and decodes the member "response" into the variable to which the parameter response points.
func open(raw []byte, response any) (r reader, id []byte) {
	e := struct {
		ID, RawID, Type string
		Response        any
	}{Response: response}
	if json.Unmarshal(raw, &e) != nil || e.Response != response || e.Type != "public-key" || e.ID != e.RawID {
		r.err = unreadable("credential")
		return r, nil
	}
	return r, r.bytes("id", e.ID, 1, maxID)
}

// signed reads the client data and the authenticator data, both of which the authenticator signs.
func (r *reader) signed(clientJSON string, authRaw []byte, attested bool) (c clientData, a authData) {
	raw := r.bytes("clientDataJSON", clientJSON, 1, maxClientData)
	if r.err == nil {
		c, r.err = readClientData(raw)
	}
	if r.err == nil {
		a, r.err = readAuthData(authRaw, attested)
	}
	return c, a
}

// Registration is an authenticator's answer to CreationOptions.
type Registration struct {
	id         []byte
	transports []string
	client     clientData
	auth       authData
}

// ParseRegistration reads a Registration from the JSON that the browser sends.
func ParseRegistration(raw []byte) (*Registration, error) {
	var in struct {
		ClientDataJSON, AttestationObject string
		Transports                        json.RawMessage
	}
	r, id := open(raw, &in)
	object := r.bytes("attestationObject", in.AttestationObject, 1, maxAttestationObject)
	var auth []byte
	if r.err == nil {
		auth, r.err = readAttestation(object)
	}
	out := &Registration{id: id, transports: KnownTransports(in.Transports)}
	if out.client, out.auth = r.signed(in.ClientDataJSON, auth, true); r.err == nil {
		_, r.err = readKey(out.auth.key)
	}
	return out, r.err
}

// readAttestation returns the authenticator data in an attestation object.
func readAttestation(object []byte) (auth []byte, err error) {
	r := cborReader{object}
	n, ok := r.mapLen()
	seen := map[string]int{}
	for i := 0; ok && i < n; i++ {
		name, readable := r.str(cborText)
		seen[string(name)]++
		switch string(name) {
		case "fmt":
			_, ok = r.str(cborText)
		case "attStmt":
			ok = r.next(cborMap) && r.skip(maxDepth-1)
		case "authData":
			auth, ok = r.str(cborBytes)
		default:
			ok = r.skip(maxDepth - 1)
		}
		ok = ok && readable
	}
	if !ok || len(r.b) > 0 || seen["fmt"] != 1 || seen["attStmt"] != 1 || seen["authData"] != 1 {
		return nil, unreadable("attestationObject")
	}
	return auth, nil
}

// KnownTransports returns those texts in a JSON list that have the form of a transport such as "usb". It does not
// compare them with a list, since new transports may appear.
func KnownTransports(raw json.RawMessage) (out []string) {
	var list []any
	_ = json.Unmarshal(raw, &list) // no transports if raw is not a list
	for _, item := range list {
		t, _ := item.(string)
		if t != "" && len(t) <= 32 && len(out) < 8 &&
			strings.Trim(t, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" {
			out = append(out, t)
		}
	}
	return out
}

// Assertion is an authenticator's answer to RequestOptions.
type Assertion struct {
	// ID names the credential. Handle is the user handle; nil if none was sent.
	ID, Handle        []byte
	client            clientData
	auth              authData
	signature, signed []byte
}

// ParseAssertion reads an Assertion from the JSON that the browser sends.
func ParseAssertion(raw []byte) (*Assertion, error) {
	var in struct {
		ClientDataJSON, AuthenticatorData, Signature string
		UserHandle                                   *string
	}
	r, id := open(raw, &in)
	a := &Assertion{ID: id}
	auth := r.bytes("authenticatorData", in.AuthenticatorData, 1, maxAuthData)
	a.client, a.auth = r.signed(in.ClientDataJSON, auth, false)
	a.signature = r.bytes("signature", in.Signature, 1, maxSignature)
	if in.UserHandle != nil {
		a.Handle = r.bytes("userHandle", *in.UserHandle, 1, maxUserHandle)
	}
	a.signed = append(auth, a.client.hash[:]...)
	return a, r.err
}
