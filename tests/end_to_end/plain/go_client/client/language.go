// Copyright the sax authors. SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	commonpb "sax/proto/common"
	lmpb "sax/proto/lm"
)

const costTrailer = "query_cost_v0"

// languageModel calls one server of a model.
type languageModel struct {
	model string
	conn  *grpc.ClientConn
}

func openModel(ctx context.Context, admin *cellAdmin, model string) (*languageModel, error) {
	address, err := findServer(ctx, admin, model)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, address)
	return &languageModel{model, conn}, err
}

// answer is a reply as this program prints it. Pieces: messages of the stream.
type answer struct {
	Texts  []string  `json:"texts,omitempty"`
	Scores []float64 `json:"scores"`
	Pieces int       `json:"pieces,omitempty"`
	Cost   int       `json:"cost"`
}

func (m *languageModel) generate(
	ctx context.Context, text string, extra *commonpb.ExtraInputs,
) (*answer, error) {
	var trailer metadata.MD
	request := &lmpb.GenerateRequest{ModelKey: m.model, Text: text, ExtraInputs: extra}
	reply, err := lmpb.NewLMServiceClient(m.conn).Generate(ctx, request, grpc.Trailer(&trailer))
	if err != nil {
		return nil, err
	}
	given := &answer{}
	for _, each := range reply.GetTexts() {
		given.Texts = append(given.Texts, each.GetText())
		given.Scores = append(given.Scores, each.GetScore())
	}
	return given, given.charge(trailer)
}

func (m *languageModel) stream(
	ctx context.Context, text string, extra *commonpb.ExtraInputs,
) (*answer, error) {
	request := &lmpb.GenerateRequest{ModelKey: m.model, Text: text, ExtraInputs: extra}
	replies, err := lmpb.NewLMServiceClient(m.conn).GenerateStream(ctx, request)
	if err != nil {
		return nil, err
	}
	given := &answer{}
	for {
		reply, err := replies.Recv()
		if err == io.EOF {
			return given, given.charge(replies.Trailer())
		}
		if err != nil {
			return nil, err
		}
		given.add(reply)
	}
}

// add appends what came to the first `prefix_len` characters of what each sample had.
func (a *answer) add(reply *lmpb.GenerateStreamResponse) {
	for index, item := range reply.GetItems() {
		if index == len(a.Texts) {
			a.Texts, a.Scores = append(a.Texts, ""), append(a.Scores, 0)
		}
		kept := []rune(a.Texts[index])[:item.GetPrefixLen()]
		a.Texts[index] = string(kept) + item.GetText()
		a.Scores[index] = item.GetScores()[0]
	}
	a.Pieces++
}

func (m *languageModel) score(ctx context.Context, prefix string, suffixes []string) (*answer, error) {
	var trailer metadata.MD
	request := &lmpb.ScoreRequest{ModelKey: m.model, Prefix: prefix, Suffix: suffixes}
	reply, err := lmpb.NewLMServiceClient(m.conn).Score(ctx, request, grpc.Trailer(&trailer))
	if err != nil {
		return nil, err
	}
	given := &answer{Scores: reply.GetLogp()}
	return given, given.charge(trailer)
}

// charge reads the device time in milliseconds that comes behind a reply.
func (a *answer) charge(trailer metadata.MD) (err error) {
	if values := trailer.Get(costTrailer); len(values) > 0 {
		a.Cost, err = strconv.Atoi(values[0])
	}
	return err
}

// extraInputs reads words KEY=NUMBER.
func extraInputs(words []string) (*commonpb.ExtraInputs, error) {
	items := map[string]float32{}
	for _, word := range words {
		parts := strings.SplitN(word, "=", 2)
		if len(parts) != 2 {
			return nil, fmt.Errorf("%q is not KEY=NUMBER", word)
		}
		value, err := strconv.ParseFloat(parts[1], 32)
		if err != nil {
			return nil, err
		}
		items[parts[0]] = float32(value)
	}
	return &commonpb.ExtraInputs{Items: items}, nil
}
