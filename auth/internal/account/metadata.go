package account

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxNesting keeps metadata readable to those who check our tokens: a verifier stops at some depth,
// ours at 32.
const maxNesting = 24

// metadata reads an object that a client sent and writes it so that PostgreSQL and every reader of our
// tokens take it; nil and null are nil. PostgreSQL refuses the character U+0000 and numbers beyond its
// range, which would otherwise be a failure of ours.
func (s *Settings) metadata(data json.RawMessage) (json.RawMessage, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	if limit := s.MetadataMaxBytes; limit > 0 && len(data) > limit {
		return nil, notValid(fmt.Sprintf("Metadata cannot be larger than %d bytes", limit))
	}
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err := d.Decode(&members)
	if err == nil && d.More() {
		err = errors.New("something follows the object")
	}
	if err != nil {
		return nil, &Refusal{Kind: Invalid, Code: CodeBadJSON, Msg: "Could not parse request body as JSON: metadata is not an object", Err: err}
	}
	if err := storable(members, 1); err != nil {
		return nil, notValid("Metadata cannot be stored: " + err.Error())
	}
	return object(members), nil
}

func mantissa(number string) string {
	digits, _, _ := strings.Cut(strings.ToLower(number), "e")
	return digits
}

// plain is text without what PostgreSQL refuses in any text. Nobody's address has it.
func plain(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

func storable(v any, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("it is nested deeper than %d levels", maxNesting)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if err := errors.Join(storable(name, depth), storable(value, depth+1)); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := storable(value, depth+1); err != nil {
				return err
			}
		}
	case string:
		if strings.ContainsRune(v, 0) {
			return errors.New("a text holds the character U+0000")
		}
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 64)
		if err != nil || len(v) > 1000 || f == 0 && strings.ContainsAny(mantissa(v.String()), "123456789") {
			return errors.New("a number is too large or too small")
		}
	}
	return nil
}
